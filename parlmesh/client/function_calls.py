"""Decorated functions as tasks: calls become requests, and outcomes become return values or exceptions."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from parlmesh.argument_values import futures_in, results_in, unpack
from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.function_tasks import FunctionTask

from .connection import Connection
from .feed import at_hand
from .outcomes import Outcome
from .task_request import Placement, Priority, TaskRequest, copied

_UNKNOWN = (
    "a fleet that this program starts knows the functions decorated before parlmesh.fleet(); on other fleets an actor "
    "knows those of the modules that its operator lists: parlmesh-actor --set 'tasks=[module]'"
)


def check_task(given: object) -> None:
    """InvalidInput for a function that no actor knows: the most common mistake of users of other libraries."""
    if not isinstance(given, FunctionTask):
        name, what = (
            (getattr(given, "__qualname__", repr(given)), "it") if callable(given) else (repr(given), "a function")
        )
        raise InvalidInput(f"{name:.100} is not a task; decorate {what} with @parlmesh.task", reason="NOT_A_TASK")


def call_of(task: FunctionTask[Any, Any], args: Sequence[Any], kwargs: dict[str, Any], task_id: str) -> TaskRequest:
    """One call as a request that depends on the tasks whose futures are among its arguments."""
    check_task(task)
    parameters, tensors = task.arguments(*args, **kwargs)
    needed = _needed(parameters, (args, kwargs))
    return TaskRequest(task.kind, parameters, tensors, task_id=task_id, **needed, **_scheduled(task))


def requests_of(
    kind: str | FunctionTask[..., Any],
    parameters: Iterable[Any],
    more: Sequence[Iterable[Any]],
    priority: Priority,
) -> Iterator[tuple[int, TaskRequest]]:
    """The requests that `map` submits, encoded lazily: calls of a function, or tasks of a kind."""
    if not isinstance(kind, str):
        check_task(kind)
        return calls_of(kind, zip(parameters, *more, strict=False), priority)
    items = parameters if at_hand([parameters]) else map(copied, parameters)
    return enumerate(TaskRequest(kind, given, priority=priority) for given in items)


def calls_of(
    task: FunctionTask[Any, Any], arguments: Iterable[Sequence[Any]], priority: Priority
) -> Iterator[tuple[int, TaskRequest]]:
    """Many calls, encoded lazily. The function's own options override the priority."""
    scheduled = {"priority": priority, **_scheduled(task)}
    for index, args in enumerate(arguments):
        parameters, tensors = task.arguments(*args)
        yield index, TaskRequest(task.kind, parameters, tensors, **_needed(parameters, args), **scheduled)


def _needed(parameters: dict[str, Any], given: Sequence[Any]) -> dict[str, Any]:
    """The tasks whose results a call gets, and their futures."""
    results = results_in(parameters)
    return {"dependencies": results, "holds": tuple(futures_in(given))} if results else {}


def _scheduled(task: FunctionTask[Any, Any]) -> dict[str, Any]:
    """The function's options as a request takes them."""
    options: dict[str, Any] = dict(task.call_options)
    node_id, labels = options.pop("node_id", ""), options.pop("labels", {})
    if node_id or labels:
        options["placement"] = Placement(node_id, labels)
    return options


def value_of(outcome: Outcome) -> Any:
    """The function's return value; raises the task's failure if there was one."""
    try:
        return unpack(outcome.unwrap(), outcome.tensors).get("value")
    except FailedPrecondition as error:
        if error.reason == "UNKNOWN_KIND":
            error.add_note(_UNKNOWN)
        raise


async def values_of(outcomes: AsyncGenerator[Outcome, None]) -> AsyncGenerator[Any, None]:
    """Return values of many calls; the first failure ends the iteration."""
    async with aclosing(outcomes) as source:
        async for outcome in source:
            await outcome.fetch()
            value = value_of(outcome)
            outcome.release()
            yield value


class TaskFuture(asyncio.Future[Any]):
    """A future that another call may take as an argument before it is done."""

    task_id: str


class Call:
    """Waits for one outcome as a future of the event loop. Cancelling the future cancels the task."""

    def __init__(self, connection: Connection, request: TaskRequest) -> None:
        self.future = TaskFuture(loop=asyncio.get_running_loop())
        self.future.task_id = request.task_id
        self.future.add_done_callback(lambda future: connection.leave(self) if future.cancelled() else None)
        connection.submissions.each([(0, request)], self)

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Called by the connection, once."""
        (outcome,) = outcomes
        if self.future.done():
            outcome.release()
            return
        # While the future exists, it may be passed as an argument.
        outcome.release_with(self.future)
        if outcome.local:
            self._answer(outcome)
        else:
            self._fetching = asyncio.get_running_loop().create_task(self._fetched(outcome))

    async def _fetched(self, outcome: Outcome) -> None:
        try:
            await outcome.fetch()
        except Exception as error:
            if not self.future.done():
                self.future.set_exception(error)
        else:
            self._answer(outcome)

    def _answer(self, outcome: Outcome) -> None:
        if self.future.done():
            return
        try:
            self.future.set_result(value_of(outcome))
        except Exception as error:
            self.future.set_exception(error)
