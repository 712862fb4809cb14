"""A study's output files: the best settings as a preset, and the importance of each setting."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from parlmesh.durable_files import PRIVATE, replace_file

from .config import TuneConfig
from .search_space import settings_of
from .study import Study

PRESET, PICTURE = "best.yaml", "importance.png"


def write_best(folder: Path, config: TuneConfig, study: Study) -> Path | None:
    """A file for `parlmesh up --config`; None before any trial has finished."""
    best = study.best()
    if best is None:
        return None
    number, value, settings = best
    content: dict[str, Any] = {"training": settings_of(config.training, {**settings, "step_budget": config.steps})}
    if config.plugins:
        content = {"plugins": list(config.plugins), **content}
    text = f"# The best of {sum(study.counts().values())} trials: number {number}, {value:g}.\n"
    file = folder / PRESET
    replace_file(file, (text + str(yaml.safe_dump(content, sort_keys=False))).encode(), mode=PRIVATE)
    return file


def draw_importances(folder: Path, importances: Mapping[str, float]) -> Path | None:
    """Draws a bar chart; None without importances or without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return None
    if not importances:
        return None
    names = list(importances)[::-1]
    figure = Figure(figsize=(7, 1 + 0.35 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.barh(names, [importances[name] for name in names])
    axes.set_xlabel("share of the variation in trial values that the setting explains")
    file = folder / PICTURE
    figure.savefig(file, dpi=120)
    return file
