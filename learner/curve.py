"""The learning curve as a picture, drawn from metrics.jsonl."""

import json
from pathlib import Path


def draw_learning_curve(metrics: Path, picture: Path, title: str, goal: float | None) -> None:
    """Returns of training episodes and of evaluations over environment steps."""
    # Slow to import and needed only here.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, label, color, marker in (
        ("return/episodes", "training, mean of 100 episodes", "#4c78a8", ""),
        ("return/evaluation", "evaluation, greedy", "#e45756", "o"),
    ):
        points = [(row["step"], row[name]) for row in rows if name in row]
        if points:
            steps, returns = zip(*points, strict=True)
            axes.plot(steps, returns, label=label, color=color, marker=marker, markersize=4)
    if goal is not None:
        axes.axhline(goal, color="#999999", linestyle="--", linewidth=1, label=f"goal {goal:g}")
    axes.set(title=title, xlabel="environment steps", ylabel="return")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(frameon=False, loc="outside lower center", ncols=3)
    figure.savefig(picture)
