"""`parlmesh mapek`: runs a loop that watches the nodes of a fleet and heals them, and shows what it remembers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parlmesh.cli.connection import AsJson, run, security_of

if TYPE_CHECKING:
    from parlmesh.mapek.config import MapekConfig
    from parlmesh.mapek.types import CycleReport
    from parlmesh.security import SecurityConfig

app = typer.Typer(no_args_is_help=True, help="Watch and heal the nodes of a fleet. The loop remembers what worked.")

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="YAML file with the loop's settings; none = defaults, a dry run"),
]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="one setting, e.g. dry_run=false; repeatable")
]
Scheduler = Annotated[
    str,
    typer.Option(
        "--scheduler",
        metavar="HOST:PORT",
        help="a running fleet whose actors have the mapek plug-in; empty = start a local one",
    ),
]
Learner = Annotated[str, typer.Option("--learner", metavar="HOST:PORT", help="the learner, for the action pause_run")]
Nodes = Annotated[
    int, typer.Option("--nodes", metavar="N", min=1, max=1000, help="nodes of a local fleet; all are this machine")
]
PolicyFile = Annotated[
    Path | None, typer.Option("--policy", metavar="FILE", help="plan with a policy written by `parlmesh mapek train`")
]
KnowledgeFile = Annotated[Path, typer.Option("--knowledge", metavar="FILE", help="the loop's knowledge file")]
PLUGIN = "parlmesh.mapek.plugin:plugin"


@app.command("run")
def run_(
    context: typer.Context,
    config: ConfigFile = None,
    assignments: Assignments = None,
    policy: PolicyFile = None,
    scheduler: Scheduler = "",
    learner: Learner = "",
    nodes: Nodes = 2,
    cycles: Annotated[int, typer.Option(metavar="N", min=0, help="cycles to run; 0 = until Ctrl-C")] = 0,
    as_json: AsJson = False,
) -> None:
    """Run cycles until Ctrl-C. The fleet keeps running when the loop ends, for whatever reason."""
    run(
        _looped(
            _settings(config, assignments, policy), scheduler, learner, nodes, cycles, security_of(context), as_json
        )
    )


@app.command()
def once(
    context: typer.Context,
    config: ConfigFile = None,
    assignments: Assignments = None,
    policy: PolicyFile = None,
    scheduler: Scheduler = "",
    learner: Learner = "",
    nodes: Nodes = 2,
    as_json: AsJson = False,
) -> None:
    """Run one cycle: read every node, find problems, act. Exit code 3 when a node is sick or unknown."""
    from parlmesh.mapek.types import Health

    report = run(
        _looped(_settings(config, assignments, policy), scheduler, learner, nodes, 1, security_of(context), as_json)
    )
    if report is not None and len(report.of(Health.HEALTHY)) < len(report.nodes):
        raise typer.Exit(3)


@app.command()
def history(
    knowledge: KnowledgeFile = Path("mapek.sqlite"),
    node: Annotated[str, typer.Option(metavar="ID", help="only this node")] = "",
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="number of decisions, newest first")] = 20,
    held: Annotated[bool, typer.Option("--held/--no-held", help="include decisions that did nothing")] = False,
    as_json: AsJson = False,
) -> None:
    """Show past decisions, and which actions worked for which symptom."""
    import json
    from dataclasses import asdict
    from datetime import datetime

    from parlmesh.cli.screen.output_tables import print_table

    with _knowledge(knowledge) as known:
        decisions, worked = known.decisions(limit, node=node, held=held), known.what_worked()
    if as_json:
        for decision in decisions:
            typer.echo(json.dumps(asdict(decision)))
        return
    print_table(
        ["decision", "when", "node", "symptom", "action", "outcome", ">seconds"],
        [
            [
                each.id,
                datetime.fromtimestamp(each.started).strftime("%m-%d %H:%M:%S"),
                each.node,
                each.symptom.name,
                each.action or "none",
                str(each.status),
                f"{each.seconds:.2f}",
            ]
            for each in decisions
        ],
        nothing="nothing was decided yet"
        if held
        else "no action was taken yet; --held shows the actions held back, and why",
    )
    if worked:
        typer.echo("")
        print_table(
            ["symptom", "action", ">tries", ">worked", ">mean seconds"],
            [
                [each["rule"], each["action"], str(each["tries"]), str(each["worked"]), f"{each['seconds']:.2f}"]
                for each in worked
            ],
            nothing="",
        )


@app.command()
def explain(
    decision: Annotated[str, typer.Argument(help="the decision's id, or a prefix of it")],
    knowledge: KnowledgeFile = Path("mapek.sqlite"),
    as_json: AsJson = False,
) -> None:
    """Explain a decision: the observation, the rule, the candidates, the expected and the measured effect."""
    import json
    from dataclasses import asdict

    from parlmesh.mapek.decision_text import explained

    with _knowledge(knowledge) as known:
        found = known.decision(decision)
    typer.echo(json.dumps(asdict(found)) if as_json else explained(found))


@app.command()
def train(
    policy: Annotated[Path, typer.Argument(metavar="FILE", help="output file, for `--policy`")] = Path("planner.json"),
    knowledge: KnowledgeFile = Path("mapek.sqlite"),
    as_json: AsJson = False,
) -> None:
    """Learn from past actions how likely each one works in which situation, and write the policy to a file."""
    import json

    from parlmesh.cli.screen.output_tables import print_table
    from parlmesh.mapek.planning.trained_planner import trained

    with _knowledge(knowledge) as known:
        found = trained(known.decisions(1_000_000, held=False))
    found.save(policy)
    if as_json:
        typer.echo(json.dumps({"policy": str(policy), "digest": found.digest, "decisions": found.decisions}))
        return
    print_table(
        ["symptom", "action", ">tries", ">features", ">seconds"],
        [
            [rule, name, str(action.tries), str(len(action.weights)), f"{action.seconds:.2f}"]
            for rule, model in found.rules.items()
            for name, action in model.actions.items()
        ],
        nothing="",
    )
    typer.echo(f"{policy}: policy {found.digest}, from {found.decisions} actions that have ended")


def _settings(file: Path | None, assignments: list[str] | None, policy: Path | None) -> "MapekConfig":
    import os

    from parlmesh.config import load
    from parlmesh.mapek.config import DEFAULTS, MapekConfig
    from parlmesh.mapek.planning.trained_planner import Policy

    overrides = list(assignments or ())
    if policy is not None:
        overrides += ["planner.kind=policy", f"planner.policy={policy}"]
    found = load(
        MapekConfig, file=file or DEFAULTS, overrides=overrides, environment=os.environ, prefix="PARLMESH_MAPEK"
    )
    if found.planner.policy is not None:
        # Reports an unreadable policy before anything is started.
        Policy.load(found.planner.policy)
    return found


def _knowledge(path: Path) -> Any:
    from parlmesh.errors import NotFound
    from parlmesh.mapek.knowledge import Knowledge

    if not path.exists():
        raise NotFound(
            f"there is no knowledge at {path}; `parlmesh mapek run` writes it, --knowledge names another file"
        )
    return Knowledge(path)


async def _looped(
    config: "MapekConfig",
    scheduler: str,
    learner: str,
    nodes: int,
    cycles: int,
    security: "SecurityConfig",
    as_json: bool,
) -> "CycleReport | None":
    import asyncio
    import signal

    from parlmesh.client import PARLController
    from parlmesh.mapek.knowledge import Knowledge
    from parlmesh.mapek.loop import MapekLoop

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    last: list[CycleReport] = []

    def told(report: "CycleReport") -> None:
        last[:] = [report]
        _say(report, as_json=as_json)
        if report.cycle - first + 1 == cycles:
            stop.set()

    async with PARLController(scheduler, learner=learner, security=security) as controller:
        if not scheduler:
            # Each actor acts as a separate node, as in a simulation.
            await controller.initialize(nodes, actor={"plugins": [PLUGIN], "virtual_nodes": 1})
        with Knowledge(config.knowledge) as knowledge:
            first = knowledge.next_cycle()
            if not as_json:
                what = "a dry run: nothing is changed" if config.dry_run else "actions are carried out"
                typer.echo(f"loop {config.name}, knowledge in {config.knowledge}, {what}")
            await MapekLoop(controller, config, knowledge).run(stop, told)
    return last[0] if last else None


def _say(report: "CycleReport", *, as_json: bool) -> None:
    import json

    from parlmesh.mapek.decision_text import as_data, summary

    if as_json:
        typer.echo(json.dumps(as_data(report)))
    else:
        typer.echo("\n".join(summary(report)))
