"""Plain functions as task handlers: decorate a function with `@parlmesh.task`, and a fleet runs it by name.

Code is never shipped. The function's module must be on the node, and the node's operator must name it
(`tasks: [module]`); a fleet that the program itself starts imports the functions the program has decorated.
"""

import asyncio
import copy
import functools
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack, overload

from parlmesh.argument_values import Arguments, pack, unpack
from parlmesh.errors import ConfigError, InvalidInput
from parlmesh.exception_text import sentence_at
from parlmesh.handlers import Context, Handler, HandlerError, Result, RunsIn
from parlmesh.types import Array

P = ParamSpec("P")
R = TypeVar("R")

IMPORTING = "PARLMESH_IMPORTING"
"""Set while an actor imports a program for its functions: the program must not start another fleet."""
ARGUMENTS = "PARLMESH_ARGUMENTS"
"""The program's own command line for that import, as a JSON list: the program reads the same there on both sides."""
MAIN = "__parlmesh_main__"
# The running program: as it was started, in a process that multiprocessing has spawned, and where an actor imports it.
_MAINS = ("__main__", "__mp_main__", MAIN)
_UNNAMED = "__main__."
"""How the kind of a function begins whose module has neither a name nor a file."""
_LARGEST_ARGUMENTS = 1000
_LONGEST_KIND = 128

_importing: list[Path] = []
_registered: dict[str, "FunctionTask[Any, Any]"] = {}


class EndOfImport(BaseException):
    """Ends the import of a program where it would start its work; the functions above that line are already known."""


class CallOptions(TypedDict, total=False):
    """How calls of a function are scheduled; omitted options take the scheduler's default."""

    priority: int
    queue_timeout: float
    """Longest wait for a slot, in seconds."""
    run_timeout: float
    """Longest run of one attempt, in seconds."""
    max_attempts: int
    node_id: str
    """Run only on this node."""
    labels: Mapping[str, str]
    """Run only on actors that have all of these labels."""


class FunctionTask(Generic[P, R]):
    """A function that a fleet knows by its kind. Calling it runs it here; submitting it runs it on an actor."""

    def __init__(self, function: Callable[P, R], kind: str, runs_in: RunsIn) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.kind = kind
        self.runs_in = runs_in
        self.call_options = CallOptions()
        self._signature = inspect.signature(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<parlmesh task {self.kind}>"

    def options(self, **options: Unpack[CallOptions]) -> Self:
        """A copy that schedules its calls this way: `fleet.submit(double.options(priority=Priority.HIGH), 3)`."""
        unknown = sorted(set(options) - set(CallOptions.__annotations__))
        if unknown:
            raise InvalidInput(
                f"{self.kind} has no option {unknown[0]}; there are {', '.join(CallOptions.__annotations__)}",
                reason="INVALID_TASK",
            )
        for name, value in options.items():
            allowed = _allowed(name, value)
            if allowed:
                raise InvalidInput(f"{self.kind}: {name} is {value!r:.60}; it must be {allowed}", reason="INVALID_TASK")
        made = copy.copy(self)
        made.call_options = CallOptions(**{**self.call_options, **options})
        return made

    def arguments(self, *args: Any, **kwargs: Any) -> Arguments:
        """Parameters and tensors of one call; raises InvalidInput when they do not fit the function's signature.

        A function that no actor can import is refused too.
        """
        if self.kind.startswith(_UNNAMED):
            raise InvalidInput(
                f"{self.kind} is defined at a prompt or in a notebook, where no actor can import it; "
                "put it into a module",
                reason="INVALID_TASK",
            )
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidInput(f"{self.kind}: {error}", reason="INVALID_PARAMETERS") from None
        given = {"args": list(args), **({"kwargs": kwargs} if kwargs else {})}
        return pack(given, self.kind)

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context) -> Any:
        """Runs the function as a handler: {args, kwargs} in, {value} out."""
        args, kwargs = _arguments(self.kind, unpack(parameters, tensors))
        answer = self.function(*args, **kwargs)
        return _awaited(self.kind, answer) if isinstance(answer, Awaitable) else _result(self.kind, answer)


@overload
def task(function: Callable[P, R], /) -> FunctionTask[P, R]: ...
@overload
def task(*, kind: str = "", runs_in: str = "") -> Callable[[Callable[P, R]], FunctionTask[P, R]]: ...
def task(function: Callable[P, R] | None = None, /, *, kind: str = "", runs_in: str = "") -> Any:
    """Lets a fleet run a function: `@parlmesh.task`, or `@parlmesh.task(kind=..., runs_in=...)`.

    Arguments and return values may be JSON values, bytes, numpy arrays, and lists, tuples and dicts of these. A plain
    function runs in its slot's thread (with `runs_in="process"` in its own process), an `async def` on the event loop.
    """
    if function is None:
        return functools.partial(_decorated, kind=kind, runs_in=runs_in)
    return _decorated(function, kind=kind, runs_in=runs_in)


def _decorated(function: Callable[P, R], *, kind: str, runs_in: str) -> FunctionTask[P, R]:
    if not callable(function):
        raise InvalidInput(f"@task must decorate a function, got {function!r:.100}", reason="INVALID_TASK")
    is_async = inspect.iscoroutinefunction(function)
    place = runs_in or (RunsIn.LOOP if is_async else RunsIn.THREAD)
    if place not in set(RunsIn) or is_async != (place == RunsIn.LOOP):
        allowed = "loop" if is_async else "thread, process or inline"
        raise InvalidInput(f"{function.__qualname__}: runs_in is {runs_in!r}; it must be {allowed}", reason="RUNS_IN")
    if "@" in kind or len(kind) > _LONGEST_KIND:
        raise InvalidInput(
            f"kind is {kind!r:.150}; it may have at most {_LONGEST_KIND} characters and no @", reason="KIND"
        )
    if "." in function.__qualname__:
        where = "a function" if "<" in function.__qualname__ else "a class"
        raise InvalidInput(
            f"{function.__qualname__} is defined inside {where}, where no actor finds it; define it in a module",
            reason="INVALID_TASK",
        )
    made = FunctionTask(function, kind or f"{_module_name(function.__module__)}.{function.__qualname__}", RunsIn(place))
    _registered[made.kind] = made
    return made


def sources() -> tuple[str, ...]:
    """The modules and program files an actor must import to know every function decorated so far.

    Functions that no actor can import are left out; a call of one is refused.
    """
    found = {_source(each): None for each in _registered.values()}
    return tuple(source for source in found if source)


def load_tasks(names: Iterable[str]) -> dict[str, "FunctionTask[Any, Any]"]:
    """Decorated functions of modules or program files, by kind; raises ConfigError for a source that has none."""
    found: dict[str, FunctionTask[Any, Any]] = {}
    for name in names:
        brought = _functions(_imported(name))
        if not brought:
            raise ConfigError(f"tasks has {name!r}, which has no function decorated with @parlmesh.task")
        found |= brought
    return found


def source_of(handler: Handler) -> str:
    """How another process finds a handler: its class, or a function's kind and the module or file that defines it."""
    if isinstance(handler, FunctionTask):
        return f"{handler.kind}@{_source(handler)}"
    return f"{type(handler).__module__}:{type(handler).__qualname__}"


def handler_at(source: str) -> Handler:
    """The inverse of `source_of`."""
    kind, at, origin = source.partition("@")
    if at:
        return load_tasks([origin])[kind]
    module, _, name = source.partition(":")
    made: Handler = getattr(importlib.import_module(module), name)()
    return made


@contextmanager
def until_first_fleet(file: Path) -> Iterator[None]:
    """Runs the import of a program up to its first call that starts a fleet, with the program's own arguments."""
    before, arguments = os.environ.get(IMPORTING), sys.argv
    os.environ[IMPORTING] = "1"
    sys.argv = [str(file), *json.loads(os.environ.get(ARGUMENTS, "[]"))]
    _importing.append(file)
    try:
        yield
    except EndOfImport:
        pass
    finally:
        _importing.pop()
        sys.argv = arguments
        if before is None:
            del os.environ[IMPORTING]


def stop_import() -> None:
    """Ends the import of a program at its first call that needs a fleet; does nothing outside such an import."""
    if os.environ.get(IMPORTING) and _importing:
        raise EndOfImport


def _allowed(name: str, value: Any) -> str:
    """What an option must be, if the value is not that; else empty."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if name in ("queue_timeout", "run_timeout"):
        return "" if value is None or number else "a number of seconds"
    if name in ("priority", "max_attempts"):
        wanted = "a parlmesh.Priority, such as parlmesh.Priority.HIGH" if name == "priority" else "a whole number"
        return "" if number and isinstance(value, int) else wanted
    if name == "node_id":
        return "" if isinstance(value, str) else "text"
    texts = isinstance(value, Mapping) and all(isinstance(part, str) for pair in value.items() for part in pair)
    return "" if texts else 'a mapping of text to text, such as {"gpu": "1"}'


def _functions(module: ModuleType) -> dict[str, "FunctionTask[Any, Any]"]:
    return {each.kind: each for each in vars(module).values() if isinstance(each, FunctionTask)}


def _imported(name: str) -> ModuleType:
    try:
        with _no_loop():
            return _program(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and name.partition(".")[0] == (error.name or "").partition(".")[0]:
            said = f"but there is no module {error.name!r}; if it is in the current folder, set PYTHONPATH=."
        else:
            said = f"which cannot be imported: {sentence_at(error)}"
        raise ConfigError(f"tasks has {name!r}, {said}") from error


@contextmanager
def _no_loop() -> Iterator[None]:
    """A program may call `asyncio.run` before its first call of a fleet, although an actor imports it on a loop."""
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(running)


def _program(file: Path) -> ModuleType:
    """Imports a script up to the first call that starts a fleet, so it needs no `if __name__ == "__main__":`."""
    if not file.is_file():
        raise ConfigError(f"tasks has {str(file)!r}, but there is no such file")
    spec = importlib.util.spec_from_file_location(MAIN, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MAIN] = module
    with until_first_fleet(file):
        spec.loader.exec_module(module)
    return module


def _module_name(module: str) -> str:
    """A name that is the same in the running program and where it is imported: its file's stem or its module name."""
    if module not in _MAINS:
        return module
    main = sys.modules[module]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != MAIN:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else module


def _source(task: "FunctionTask[Any, Any]") -> str:
    """The module's name or the program's file; empty for a prompt or a notebook."""
    module = task.function.__module__
    if module not in _MAINS:
        return module
    main = sys.modules[module]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None and spec.name != MAIN:
        return str(spec.name)
    return str(Path(file).resolve()) if file else ""


def _arguments(kind: str, given: Any) -> tuple[list[Any], dict[str, Any]]:
    args, kwargs = given.get("args", []), given.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict) or len(args) + len(kwargs) > _LARGEST_ARGUMENTS:
        raise InvalidInput(
            f"{kind} takes {{args: [...], kwargs: {{...}}}}, at most {_LARGEST_ARGUMENTS} in all",
            reason="INVALID_PARAMETERS",
        )
    return args, kwargs


async def _awaited(kind: str, answer: Awaitable[Any]) -> Result:
    return _result(kind, await answer)


def _result(kind: str, value: Any) -> Result:
    try:
        return Result(*pack({"value": value}, kind))
    except InvalidInput as error:
        raise HandlerError(error.message, retryable=False, reason="INVALID_RESULT") from error
