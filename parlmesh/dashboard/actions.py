"""The actions of operators. Each takes a checked form and returns one sentence."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from parlmesh.errors import InvalidInput
from parlmesh.v1 import scheduler_service_pb2 as pb

from . import number_format as figures
from .page_request import View
from .pages.tasks import request_of

MOST_AT_ONCE = 10_000
Form = Mapping[str, Sequence[str]]

COMMANDS: Mapping[str, tuple[pb.ActorCommand.ValueType, str]] = {
    "pause": (pb.ACTOR_COMMAND_PAUSE, "paused"),
    "resume": (pb.ACTOR_COMMAND_RESUME, "resumed"),
    "drain": (pb.ACTOR_COMMAND_DRAIN, "asked to finish and leave"),
    "reset": (pb.ACTOR_COMMAND_RESET, "reset"),
}


async def command_actors(view: View, form: Form) -> str:
    """Pauses, resumes, drains or resets the chosen actors."""
    verb = _one(form, "verb")
    if verb not in COMMANDS:
        raise InvalidInput(f"verb is {verb[:40]!a}; allowed are {', '.join(COMMANDS)}")
    chosen = _several(form, "actor", "no actor is chosen; tick some first")
    command, done = COMMANDS[verb]
    count = await view.fleet.command(chosen, command)
    return f"{figures.counted(count, 'actor')} {done}"


async def cancel_tasks(view: View, form: Form) -> str:
    """Cancels the chosen tasks or, if confirmed, all unfinished ones that match the filters."""
    if form.get("matching"):
        if not form.get("really"):
            raise InvalidInput("cancelling all that match needs the tick at `really`")
        chosen = await _matching(view)
        if not chosen:
            return "nothing to cancel: no unfinished task matches"
    else:
        chosen = _several(form, "task", "no task is chosen; tick some first")
    cancelled = await view.fleet.cancel(chosen)
    ended = len(chosen) - len(cancelled)
    had = f"; {ended:,} had ended already" if ended else ""
    return f"{figures.counted(len(cancelled), 'task')} cancelled{had}"


async def _matching(view: View) -> list[str]:
    """Ids of the unfinished tasks that match the filters, at most as many as one call may name."""
    chosen: list[str] = []
    request = request_of(view, 1_000)
    request.page_token = ""
    unfinished = request_of(View("tasks", {"state": "unfinished"}, view.visitor, view.fleet, view.pulse, view.config))
    wanted = set(request.states) & set(unfinished.states) if request.states else set(unfinished.states)
    if not wanted:
        return []
    del request.states[:]
    request.states.extend(sorted(wanted))
    while len(chosen) < MOST_AT_ONCE:
        answer = await view.fleet.tasks(request)
        chosen += [task.spec.task_id for task in answer.tasks]
        request.page_token = answer.next_page_token
        if not request.page_token:
            break
    return chosen[:MOST_AT_ONCE]


async def promote_model(view: View, form: Form) -> str:
    """Promotes a version to the default of its run."""
    run_id, version = _one(form, "run"), _one(form, "version")
    if not (version.isascii() and version.isdecimal() and len(version) < 20):
        raise InvalidInput(f"version is {version[:40]!a}; it must be a whole number")
    await view.fleet.promote(run_id, int(version))
    return f"version {int(version):,} of {run_id} is promoted"


async def steer_run(view: View, form: Form) -> str:
    """Pauses, resumes or stops a run."""
    run_id, verb = _one(form, "run"), _one(form, "verb")
    done = {"pause": "is paused", "resume": "continues", "stop": "ends after the current update"}
    if verb not in done:
        raise InvalidInput(f"verb is {verb[:40]!a}; allowed are {', '.join(done)}")
    await view.fleet.steer(run_id, verb)
    return f"{run_id} {done[verb]}"


ACTIONS: Mapping[str, tuple[Callable[[View, Form], Awaitable[str]], str]] = {
    "actors": (command_actors, ""),
    "cancel": (cancel_tasks, "tasks"),
    "promote": (promote_model, "models"),
    "steer": (steer_run, "runs"),
}
"""Actions by the last part of their path, each with the page it returns to."""


def _one(form: Form, name: str) -> str:
    found = form.get(name, ())
    if len(found) != 1:
        raise InvalidInput(f"the form has {len(found)} values of {name}; it must have one")
    return found[0]


def _several(form: Form, name: str, nothing: str) -> list[str]:
    found = list(dict.fromkeys(form.get(name, ())))
    if not found:
        raise InvalidInput(nothing)
    if len(found) > MOST_AT_ONCE:
        raise InvalidInput(f"{len(found):,} are chosen; the limit is {MOST_AT_ONCE:,} at once")
    return found
