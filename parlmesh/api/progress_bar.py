"""A progress bar for a run, in a terminal or a notebook."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .train_call import TrainingRun


@contextmanager
def progress_bar(run: "TrainingRun", *, shown: bool | None = None) -> Iterator[None]:
    """Shows the run until the block ends; `shown` None = only in a terminal or notebook. Needs rich."""
    if shown is False or (shown is None and not (sys.stderr.isatty() or "ipykernel" in sys.modules)):
        yield
        return
    bar: Any = None
    with suppress(ImportError):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), TextColumn("{task.completed:,.0f} of {task.total:,.0f} steps"), TimeRemainingColumn())
        bar = Progress(
            TextColumn(run.run_id), *columns, TextColumn("{task.fields[told]}"), console=Console(stderr=True)
        )
    if bar is None:
        yield
        return
    with bar:
        task = bar.add_task(run.run_id, total=1, told="")
        run.watch(lambda told: bar.update(task, completed=told.steps, total=told.step_budget or 1, told=_told(told)))
        yield


def _told(progress: Any) -> str:
    value = progress.evaluation_return if progress.evaluation_return is not None else progress.episode_return
    return "" if value is None else f"return {value:.1f}"
