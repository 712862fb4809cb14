"""What to try next after a run: commands that work as they stand."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from parlmesh.cli.screen.run_summary import Ending
from parlmesh.local.presets import presets_of
from parlmesh.local.process_configs import RunPaths


def print_next(console: Console, ending: Ending, paths: RunPaths, again: Sequence[str] = ()) -> None:
    """Commands that work as they stand, each on a line of its own to be copied."""
    console.print("\nwhat to try next", style="bold")
    for command, purpose in next_commands(ending, paths, program_name(), again):
        console.print(f"  # {purpose}", style="dim", soft_wrap=True)
        console.print(f"  {command}", style="cyan", soft_wrap=True)


def next_commands(ending: Ending, paths: RunPaths, program: str, again: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Command and purpose, for this run and with the options it was started with."""
    root = paths.root
    similar = f"{program} {shlex.join(['up', *again])}"
    run = root.name if root.parent == Path("runs") else str(root)
    if ending.stillborn:
        return [(f"{similar} --serial", "once the environment is mended; in one process faults show soonest")]
    if ending.training is None:
        return [(similar, "once that is mended")]
    commands = []
    if ending.reached:
        steps = 2 * max(ending.training.progress.step_budget, 1)
        purpose = "train on from the last checkpoint, whatever the evaluation says"
        commands.append((f"{program} up --resume {run} --steps {steps} --no-goal", purpose))
    else:
        commands.append((f"{program} up --resume {run}", "go on from the last checkpoint"))
    commands += [
        (f"{similar} --seed 1 --actors 4", "another seed, more actors"),
        (f"{similar} --keep", f"leave the fleet up, and look at it with `{program} status` from another terminal"),
    ]
    if "--environment" in again and "--config" not in again:
        name = again[again.index("--environment") + 1]
        known = f"settings that are known to learn {name}; the defaults are CartPole's"
        commands += [(f"{program} up --config {preset}", known) for preset in presets_of(name)[:1]]
    if (paths.root / "tensorboard").exists():
        commands.append((f"{beside(program, 'tensorboard')} --logdir {root}/tensorboard", "the curves in a browser"))
    return commands


def program_name() -> str:
    """How this command can be typed again."""
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
    """Another program of the same installation."""
    return str(Path(program).with_name(other)) if "/" in program else other
