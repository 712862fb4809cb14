"""The summary of a run: its result and where its files are."""

import json
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from parlmesh.cli.screen.fleet_view import clock, differing_text, failures_text, goal_text, state_name
from parlmesh.cli.screen.output_tables import fields_of
from parlmesh.cli.up_ending import Ending
from parlmesh.local.process_configs import RunPaths

FILES = (
    ("learning curve", "learning-curve.png"),
    ("metrics", "metrics.jsonl"),
    ("TensorBoard", "tensorboard"),
    ("checkpoints", "checkpoints"),
    ("configuration", "learner.effective.yaml"),
    ("logs", "logs"),
)


def print_summary(console: Console, ending: Ending, paths: RunPaths, *, restarts: int, seconds: float) -> None:
    """Prints the result of a run in about fifteen lines."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in _figures(ending, restarts, seconds):
        table.add_row(label, value)
    for label, name in FILES:
        if (paths.root / name).exists():
            table.add_row(label, str(paths.root / name))
    console.print()
    console.print(_headline(ending), soft_wrap=True)
    console.print(table)
    traceback = ending.training.progress.last_failure_traceback if ending.training is not None else ""
    if traceback:
        console.print("\nthe last failure", style="bold red")
        console.print(Text(traceback.rstrip()), soft_wrap=True)


def print_ending(ending: Ending, paths: RunPaths) -> None:
    """Prints the result for programs: one JSON object on stdout."""
    training = fields_of(ending.training) if ending.training is not None else None
    state = state_name(ending.training.state) if ending.training is not None else "not started"
    reason = ending.trouble or (ending.training.reason if ending.training is not None else "")
    found = {"state": state, "reason": reason, "folder": str(paths.root), "training": training}
    sys.stdout.write(json.dumps(found) + "\n")


def _headline(ending: Ending) -> Text:
    if ending.reached and ending.unevaluated:
        return Text("finished, but no evaluation succeeded", style="bold red")
    if ending.reached and ending.faulty and ending.training is not None:
        count = ending.training.progress.failed_rollouts
        return Text(f"finished, but {count:,} rollouts failed: check the environment", style="bold red")
    if ending.reached and ending.training is not None:
        return Text(f"finished: {ending.training.reason or 'the run reached its end'}", style="bold green")
    if ending.trouble:
        return Text(f"not finished: {ending.trouble}", style="bold red")
    state = state_name(ending.training.state) if ending.training is not None else "not started"
    reason = ending.training.reason.partition("\n")[0] if ending.training is not None else ""
    return Text(f"{state}: {reason}" if reason else state, style="bold yellow")


def _figures(ending: Ending, restarts: int, seconds: float) -> list[tuple[str, str]]:
    rows = [("run time", clock(seconds))]
    if ending.training is not None:
        progress = ending.training.progress
        trained = progress.elapsed_seconds
        mean = f", {progress.steps / trained:,.0f} steps/s" if trained > 0 else ""
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in sorted(progress.dropped_trajectories.items()))
        rows = [
            ("run", ending.training.run_id),
            ("trained", f"{progress.steps:,} steps in {trained:,.1f} s{mean}"),
            ("evaluation", goal_text(ending.training)),
            ("policy", f"version {progress.policy_version}, largest lag {progress.max_policy_lag_seen}"),
            (
                "dropped",
                f"{dropped} of {progress.received_trajectories:,} trajectories" if dropped else "no trajectory",
            ),
            *rows,
        ]
        told = (("differs", differing_text(ending.training)), ("failed", failures_text(ending.training)))
        rows += [(name, text) for name, text in told if text]
    return [*rows, ("restarts", str(restarts))]
