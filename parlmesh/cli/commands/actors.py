"""`parlmesh actors`: lists and controls the actors of a running fleet."""

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from parlmesh.cli.connection import (
    CALL_SECONDS,
    SCHEDULER_DEFAULT,
    AsJson,
    SchedulerAddress,
    ask,
    scheduler_at,
)
from parlmesh.cli.screen.ages import age_of
from parlmesh.cli.screen.output_tables import enum_word, print_json, print_table
from parlmesh.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parlmesh.v1.scheduler_service_pb2 import Actor, ActorCommand
    from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceAsyncStub

app = typer.Typer(no_args_is_help=True, help="List and control the actors of a running fleet.")

ActorIds = Annotated[list[str] | None, typer.Argument(metavar="[ACTOR_ID…]", help="ids as `actors list` shows them")]
Nodes = Annotated[list[str] | None, typer.Option("--node", metavar="NODE", help="all actors of a node; repeatable")]


@app.command("list")
def list_actors(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="at most this many")] = 1_000,
    scheduler: SchedulerAddress = SCHEDULER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the actors by id, including recently lost ones."""

    async def listed(stub: "SchedulerServiceAsyncStub") -> "Sequence[Actor]":
        from parlmesh.rpc import pages
        from parlmesh.v1.scheduler_service_pb2 import ListActorsRequest

        actors: list[Actor] = []
        request = ListActorsRequest(page_size=min(limit + 1, 1_000))
        async for page in pages(partial(stub.ListActors, timeout=CALL_SECONDS), request):
            actors += page.actors
            if len(actors) > limit:
                break
        return actors

    actors = ask(scheduler_at, scheduler, context, listed)
    show_actors(actors[:limit], as_json=as_json)
    if len(actors) > limit:
        typer.echo(f"there are more than {limit}: --limit shows them", err=True)


@app.command()
def pause(
    context: typer.Context,
    actor_ids: ActorIds = None,
    nodes: Nodes = None,
    scheduler: SchedulerAddress = SCHEDULER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Let actors finish their tasks and take no more until resumed."""
    from parlmesh.v1.scheduler_service_pb2 import ACTOR_COMMAND_PAUSE

    show_actors(_commanded(scheduler, context, actor_ids, nodes, ACTOR_COMMAND_PAUSE), as_json=as_json)


@app.command()
def resume(
    context: typer.Context,
    actor_ids: ActorIds = None,
    nodes: Nodes = None,
    scheduler: SchedulerAddress = SCHEDULER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Let paused and quarantined actors take tasks again."""
    from parlmesh.v1.scheduler_service_pb2 import ACTOR_COMMAND_RESUME

    show_actors(_commanded(scheduler, context, actor_ids, nodes, ACTOR_COMMAND_RESUME), as_json=as_json)


@app.command()
def reset(
    context: typer.Context,
    actor_ids: ActorIds = None,
    nodes: Nodes = None,
    scheduler: SchedulerAddress = SCHEDULER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Make actors drop their environments, caches and running tasks and start again."""
    from parlmesh.v1.scheduler_service_pb2 import ACTOR_COMMAND_RESET

    show_actors(_commanded(scheduler, context, actor_ids, nodes, ACTOR_COMMAND_RESET), as_json=as_json)


@app.command()
def drain(
    context: typer.Context,
    actor_ids: ActorIds = None,
    nodes: Nodes = None,
    scheduler: SchedulerAddress = SCHEDULER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Let actors finish their tasks and leave; a supervised actor is then restarted."""
    from parlmesh.v1.scheduler_service_pb2 import ACTOR_COMMAND_DRAIN

    show_actors(_commanded(scheduler, context, actor_ids, nodes, ACTOR_COMMAND_DRAIN), as_json=as_json)


@app.command()
def quarantine(
    context: typer.Context,
    reason: Annotated[str, typer.Option(help="why, in one sentence; `actors list` shows it")],
    actor_ids: ActorIds = None,
    nodes: Nodes = None,
    scheduler: SchedulerAddress = SCHEDULER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Take all tasks from the actors' nodes and give them none for some time; `resume` ends it."""
    from parlmesh.v1.scheduler_service_pb2 import ACTOR_COMMAND_QUARANTINE

    show_actors(_commanded(scheduler, context, actor_ids, nodes, ACTOR_COMMAND_QUARANTINE, reason), as_json=as_json)


def _commanded(
    address: str,
    context: typer.Context,
    actor_ids: list[str] | None,
    nodes: list[str] | None,
    command: "ActorCommand.ValueType",
    reason: str = "",
) -> "Sequence[Actor]":
    from parlmesh.v1.scheduler_service_pb2 import UpdateActorsRequest

    if not actor_ids and not nodes:
        raise InvalidInput("name actors, or a node with --node")
    request = UpdateActorsRequest(actor_ids=actor_ids, node_ids=nodes, command=command, reason=reason)
    answer = ask(scheduler_at, address, context, lambda stub: stub.UpdateActors(request, timeout=CALL_SECONDS))
    actors: Sequence[Actor] = answer.actors
    return actors


def show_actors(actors: "Sequence[Actor]", *, as_json: bool = False) -> None:
    """Prints the actors as a table or as JSON."""
    from parlmesh.v1.scheduler_service_pb2 import ActorState

    if as_json:
        print_json(actors)
        return
    now = time.time()
    print_table(
        [
            "actor",
            "node?",
            "state",
            ">slots",
            ">running",
            ">completed",
            ">failed",
            "heartbeat?",
            "kinds?",
            "labels?",
            "quarantine?",
        ],
        [
            [
                actor.actor_id,
                actor.node_id,
                enum_word(ActorState.Name(actor.state), "ACTOR_STATE_"),
                str(actor.slots),
                str(actor.running_tasks),
                f"{actor.completed_tasks:,}",
                f"{actor.failed_tasks:,}",
                age_of(actor.last_heartbeat_time, now),
                ", ".join(sorted(actor.kinds)),
                # Actors claim their labels, except those that begin with "attested/".
                ", ".join(f"{name}={value}" for name, value in sorted(actor.labels.items())),
                actor.quarantine_reason,
            ]
            for actor in sorted(actors, key=lambda actor: actor.actor_id)
        ],
        nothing="no actor is connected",
    )
