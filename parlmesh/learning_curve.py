"""The picture of a run's returns over environment steps, for its folder and for notebooks. Imports matplotlib late."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points: TypeAlias = tuple[npt.ArrayLike, npt.ArrayLike]
"""Steps and values."""

RETURNS = ("return/episodes", "return/evaluation", "return/evaluation_worst", "return/evaluation_best")
"""The curves in the picture."""

_LABELS = {
    "return/episodes": ("training, mean of 100 episodes", "#4c78a8", ""),
    "return/evaluation": ("evaluation, and its worst and best episode", "#e45756", "o"),
}
_COLORS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f58518", "#72b7b2")
_NONE: Points = ((), ())
# More markers than this make a thick line.
_MOST_MARKERS = 60


def returns_figure(curves: Mapping[str, Points], title: str, goal: float | None = None) -> "Figure":
    """Returns of training episodes and of evaluations."""
    figure, axes = _empty(title, "return")
    for name, (label, color, marker) in _LABELS.items():
        steps, values = curves.get(name, _NONE)
        if np.size(steps):
            shape = marker if np.size(steps) <= _MOST_MARKERS else ""
            axes.plot(steps, values, label=label, color=color, marker=shape, markersize=4)
    worst, best = (curves.get(f"return/evaluation_{end}", _NONE) for end in ("worst", "best"))
    if np.array_equal(worst[0], best[0]):
        axes.fill_between(worst[0], worst[1], best[1], color="#e45756", alpha=0.15, linewidth=0)
    if goal is not None:
        axes.axhline(goal, color="#999999", linestyle="--", linewidth=1, label=f"goal {goal:g}")
    return _with_legend(figure, axes)


def curves_figure(curves: Mapping[str, Points], names: Sequence[str], title: str) -> "Figure":
    """Chosen curves."""
    figure, axes = _empty(title, names[0] if len(names) == 1 else "")
    for position, name in enumerate(names):
        steps, values = curves[name]
        axes.plot(steps, values, label=name, color=_COLORS[position % len(_COLORS)])
    return _with_legend(figure, axes)


def _empty(title: str, ylabel: str) -> "tuple[Figure, Any]":
    # Slow to import and needed only here: a learner that is stopped right away ends in half the time.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    class Picture(Figure):
        """Shown by notebooks as it is, without pyplot."""

        def _repr_png_(self) -> bytes:
            picture = io.BytesIO()
            self.savefig(picture, format="png")
            return picture.getvalue()

    figure = Picture(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set(title=title, xlabel="environment steps", ylabel=ylabel)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _with_legend(figure: "Figure", axes: Any) -> "Figure":
    if axes.get_legend_handles_labels()[0]:
        figure.legend(frameon=False, loc="outside lower center", ncols=3)
    return figure
