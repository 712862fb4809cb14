"""Compares trainings: curves from their runs' folders, scores of their policies on held-out jobs, and a plot."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parlmesh.errors import NotFound
from parlmesh.policies import load_policy

from .evaluation import Score, evaluate_policy
from .variants import Variant

CURVES = ("critical_steps", "success", "sub_agents", "finish_rate", "lambda1", "lambda2")
_PREFIX = "orchestration/"
# Each plotted point is the mean of this many updates.
_SMOOTHED = 5


@dataclass(frozen=True)
class Compared:
    """One run: its curves by name, as (steps, values), and its scores by family."""

    name: str
    seed: int
    curves: Mapping[str, tuple[list[float], list[float]]]
    scores: Mapping[str, Score]


def read_run(folder: Path, variant: Variant, seed: int) -> Compared:
    """Reads a run made by `parlmesh up`."""
    policy, metrics = folder / "policy.safetensors", folder / "metrics.jsonl"
    for file in (policy, metrics):
        if not file.is_file():
            raise NotFound(f"{folder} has no {file.name}; it is not a finished run")
    assigning = variant.environment.get("assigning", "separate")
    scores = evaluate_policy(load_policy(policy.read_bytes()), assigning=assigning)
    return Compared(variant.name, seed, read_curves(metrics), scores)


def read_curves(metrics: Path) -> dict[str, tuple[list[float], list[float]]]:
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in CURVES}
    for line in metrics.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            point = json.loads(line)
        except (ValueError, RecursionError):
            # Cut off by a kill; the other lines still make a curve.
            continue
        if not isinstance(point, dict) or not isinstance(point.get("step"), (int, float)):
            continue
        for name, (steps, values) in found.items():
            if isinstance(point.get(_PREFIX + name), (int, float)):
                steps.append(point["step"])
                values.append(point[_PREFIX + name])
    return found


def rows_of(runs: Sequence[Compared], family: str, single: Score) -> Iterator[list[str]]:
    """One row per variant: medians over its seeds, and the worst speed-up."""
    for name in dict.fromkeys(run.name for run in runs):
        scores = [run.scores[family] for run in runs if run.name == name]
        speeds = [score.work_per_step / single.work_per_step for score in scores]
        median = {field: float(np.median([getattr(score, field) for score in scores])) for field in _SHOWN}
        yield [
            name,
            str(len(scores)),
            f"{np.median(speeds):.2f}",
            f"{min(speeds):.2f}",
            *(f"{median[field]:.2f}" for field in _SHOWN),
        ]


_SHOWN = ("success", "coverage", "critical_steps", "sub_agents", "finish_rate", "own")
# Columns with a question mark are left out on a narrow screen.
COLUMNS = [
    *("variant", ">seeds", ">speed-up", ">worst", ">success", ">coverage?"),
    *(">critical steps", ">sub-agents", ">finish rate?", ">own?"),
]


def settings_of(variant: Variant) -> list[str]:
    """The `parlmesh up --set` arguments for a variant."""
    custom = _flat("training.custom", variant.custom)
    return [*custom, *_flat("training.environment.kwargs", variant.environment)]


def _flat(prefix: str, settings: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for name, value in settings.items():
        key = f"{prefix}.{name}"
        found += _flat(key, value) if isinstance(value, Mapping) else [f"{key}={json.dumps(value)}"]
    return found


def draw(runs: Sequence[Compared], picture: Path) -> None:
    """Plots curves over training: one line per variant with the range over its seeds, including both weights."""
    # Slow to import and needed only here.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(12, 7), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    names = list(dict.fromkeys(run.name for run in runs))
    for axes, curve in zip(figure.subplots(2, 3).flat, CURVES, strict=True):
        for number, name in enumerate(names):
            drawn = [_smooth(*run.curves[curve]) for run in runs if run.name == name and run.curves[curve][0]]
            if not drawn:
                continue
            steps = max((steps for steps, _ in drawn), key=len)
            lines = np.array([np.interp(steps, *line) for line in drawn])
            axes.plot(steps, np.median(lines, 0), label=name, color=f"C{number}")
            axes.fill_between(steps, lines.min(0), lines.max(0), color=f"C{number}", alpha=0.15, linewidth=0)
        axes.set(title=curve.replace("_", " "), xlabel="environment steps")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.25)
    if names:
        figure.legend(
            *figure.axes[0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=len(names)
        )
    figure.savefig(picture)


def _smooth(steps: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    size = min(_SMOOTHED, len(values))
    kernel = np.ones(size) / size
    return list(steps[size - 1 :]), np.convolve(values, kernel, "valid").tolist()
