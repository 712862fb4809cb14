"""The learning curve as a picture, drawn from metrics.jsonl."""

from pathlib import Path

from .series import read_curves

# More than a picture of this width can show.
_MOST_POINTS = 5_000


def draw_learning_curve(metrics: Path, picture: Path, title: str, goal: float | None) -> None:
    """Returns of training episodes and of evaluations over environment steps."""
    # Slow to import and needed only here.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    labels = (
        ("return/episodes", "training, mean of 100 episodes", "#4c78a8", ""),
        ("return/evaluation", "evaluation, greedy", "#e45756", "o"),
    )
    curves = read_curves(metrics, [name for name, *_ in labels])
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, label, color, marker in labels:
        curve = curves[name].thinned(_MOST_POINTS)
        if curve.steps:
            axes.plot(curve.steps, curve.values, label=label, color=color, marker=marker, markersize=4)
    if goal is not None:
        axes.axhline(goal, color="#999999", linestyle="--", linewidth=1, label=f"goal {goal:g}")
    axes.set(title=title, xlabel="environment steps", ylabel="return")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(frameon=False, loc="outside lower center", ncols=3)
    figure.savefig(picture)
