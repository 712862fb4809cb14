"""Suggests commands to try after a run, ready to be copied."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from parlmesh.cli.up_ending import Ending
from parlmesh.local.presets import presets_of
from parlmesh.local.process_configs import RunPaths


def print_next(console: Console, ending: Ending, paths: RunPaths, again: Sequence[str] = ()) -> None:
    """Prints the commands, each on its own line."""
    console.print("\nwhat to try next", style="bold")
    for command, purpose in next_commands(ending, paths, program_name(), again):
        console.print(f"  # {purpose}", style="dim", soft_wrap=True)
        console.print(f"  {command}", style="cyan", soft_wrap=True)


def next_commands(ending: Ending, paths: RunPaths, program: str, again: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Commands and their purpose, with the options this run was started with."""
    root = paths.root
    similar = f"{program} {shlex.join(['up', *again])}"
    run = root.name if root.parent == Path("runs") else str(root)
    if ending.stillborn:
        return [(f"{similar} --serial", "once the environment is fixed; a single process shows faults soonest")]
    if ending.training is None:
        return [(similar, "once that is fixed")]
    commands = []
    if ending.reached:
        steps = 2 * max(ending.training.progress.step_budget, 1)
        purpose = "continue from the last checkpoint, whatever the evaluation says"
        commands.append((f"{program} up --resume {run} --steps {steps} --no-goal", purpose))
    else:
        commands.append((f"{program} up --resume {run}", "continue from the last checkpoint"))
    commands += [
        (f"{similar} --seed 1 --actors 4", "another seed, more actors"),
        (f"{similar} --keep", f"keep the fleet running, and look at it with `{program} status` from another terminal"),
    ]
    if "--environment" in again and "--config" not in again:
        name = again[again.index("--environment") + 1]
        known = f"settings known to learn {name}; the defaults are for CartPole"
        commands += [(f"{program} up --config {preset}", known) for preset in presets_of(name)[:1]]
    if (paths.root / "tensorboard").exists():
        commands.append((f"{beside(program, 'tensorboard')} --logdir {root}/tensorboard", "the curves in a browser"))
    return commands


def program_name() -> str:
    """How to call this program again."""
    called = Path(sys.argv[0])
    if called.name != "parlmesh":
        return f"{Path(sys.executable).name} -m parlmesh.cli"
    found = shutil.which("parlmesh")
    if found is not None and Path(found).resolve() == called.resolve():
        return "parlmesh"
    try:
        return str(called.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(called)


def beside(program: str, other: str) -> str:
    """The path of another program of the same installation."""
    return str(Path(program).with_name(other)) if "/" in program else other
