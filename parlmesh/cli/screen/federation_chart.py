"""Draws a federation: the model's quality and the number of participating nodes, round by round."""

from collections.abc import Sequence
from pathlib import Path

from parlmesh.cli.screen.federation_view import headline
from parlmesh.v1 import federation_service_pb2 as pb


def draw_rounds(rounds: Sequence[pb.Round], picture: Path, title: str) -> None:
    """Writes a PNG."""
    # matplotlib is slow to import and needed only here.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    ordered = sorted(rounds, key=lambda each: each.number)
    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    points = [(each.number, found) for each in ordered if (found := headline(each.metrics)) is not None]
    if points:
        above.plot([number for number, _ in points], [value for _, (_, value) in points], color="#4c78a8", marker=".")
        above.set_ylabel(points[-1][1][0])
    numbers = [each.number for each in ordered]
    accepted = [sum(not update.refusal for update in each.updates) for each in ordered]
    refused = [len(each.updates) - count for each, count in zip(ordered, accepted, strict=True)]
    below.bar(numbers, accepted, color="#54a24b", label="accepted")
    below.bar(numbers, refused, bottom=accepted, color="#e45756", label="refused or silent")
    below.set(xlabel="round", ylabel="nodes")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    # Outside the axes, where it does not cover the bars.
    figure.legend(*below.get_legend_handles_labels(), frameon=False, ncols=2, loc="outside lower center")
    above.set_title(title)
    for axes in (above, below):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture)
