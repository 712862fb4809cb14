"""Runs with their curves, and saved models."""

from collections import defaultdict
from typing import Any

import yaml
from google.protobuf.json_format import MessageToDict

from parlmesh.errors import NotFound
from parlmesh.v1 import metrics_service_pb2 as metrics_pb
from parlmesh.v1 import model_service_pb2 as model_pb
from parlmesh.v1 import training_service_pb2 as training_pb

from .. import number_format as figures
from ..page_request import View

POINTS = 300
TABLE_POINTS = 12
MOST_MODELS = 200
MOST_RATED = 20
TOGETHER = {
    "return/episodes": "return",
    "return/evaluation": "return",
    "loss/policy": "loss",
    "loss/value": "loss",
    "loss/total": "loss",
    "selfplay/elo": "rating",
    "experience/learner_idle_ratio": "share of time spent waiting",
    "experience/actor_idle_ratio": "share of time spent waiting",
}
"""Curves that share a chart; every other curve has its own scale and chart."""
FIRST = (
    "return",
    "rating",
    "share of time spent waiting",
    "policy/lag",
    "throughput/steps_per_second",
    "loss",
    "policy/entropy",
)
"""Charts that come first, by interest; the others follow by name."""
LEFT_OUT = frozenset({"run/elapsed_seconds", "policy/version", "selfplay/elo_error"})
"""Curves that only grow, and a rating's error, which is shown beside its value."""


async def runs(view: View) -> dict[str, Any]:
    """All runs of the learner."""
    return {"runs": [_run(training) for training in await view.fleet.trainings()]}


async def run(view: View) -> dict[str, Any]:
    """One run: its numbers, its curves, its settings."""
    run_id = view.asked("id")
    training = next((each for each in await view.fleet.trainings() if each.run_id == run_id), None)
    if training is None:
        raise NotFound(f"there is no run {run_id!a}; the page of runs lists all runs")
    series = await view.fleet.curves(metrics_pb.QueryMetricsRequest(run_id=run_id, max_points=POINTS))
    progress = training.progress
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in sorted(progress.dropped_trajectories.items()))
    return {
        "run": _run(training),
        "charts": charts(series),
        "run_facts": [
            ("steps", f"{progress.steps:,} of {progress.step_budget:,}"),
            ("episodes", figures.number(progress.episodes)),
            (
                "policy lag",
                f"{progress.policy_lag:.1f} mean of the last batch, {progress.max_policy_lag_seen:,} at most",
            ),
            ("learner waited", figures.percent(progress.learner_idle_ratio)),
            ("actors waited", figures.percent(progress.actor_idle_ratio)),
            ("trajectories", f"{progress.received_trajectories:,} received, {progress.queued_trajectories:,} queued"),
            ("dropped", dropped or "none"),
            ("failed", f"{progress.failed_rollouts:,} rollouts, {progress.failed_evaluations:,} evaluations"),
            ("trained", figures.seconds(progress.elapsed_seconds)),
            ("created", figures.clock(figures.moment(training.create_time))),
        ],
        "ratings": await _ratings(view, run_id),
        "last_failure": progress.last_failure,
        "last_traceback": progress.last_failure_traceback,
        "configuration": yaml.safe_dump(MessageToDict(training.configuration), sort_keys=False),
    }


async def _ratings(view: View, run_id: str) -> list[dict[str, Any]]:
    """The rated models of a self-play run, best first."""
    models = [model for model in await view.fleet.models() if model.run_id == run_id]
    rated = [(model, MessageToDict(model.metadata)) for model in models]
    found = [(model, about) for model, about in rated if _rating(about) != figures.NONE]
    found.sort(key=lambda each: -float(each[1]["elo"]))
    return [
        {
            "version": model.version,
            "rating": _rating(about),
            "promoted": model.promoted,
            "steps": figures.number(about["steps"]) if isinstance(about.get("steps"), int | float) else figures.NONE,
        }
        for model, about in found[:MOST_RATED]
    ]


def _run(training: training_pb.Training) -> dict[str, Any]:
    progress = training.progress
    state = figures.run_state(training.state)
    environment = MessageToDict(training.configuration).get("environment", "")
    return {
        "id": training.run_id,
        "state": state,
        "tone": figures.tone(state),
        "environment": environment.get("id", "") if isinstance(environment, dict) else environment,
        "reason": training.reason or training.obstacle,
        "notes": list(training.notes),
        "steps": figures.number(progress.steps),
        "share": min(100.0, 100.0 * progress.steps / progress.step_budget) if progress.step_budget else 0.0,
        "speed": figures.number(progress.steps_per_second),
        "return": figures.number(progress.episode_return, 1) if progress.HasField("episode_return") else figures.NONE,
        "evaluation": figures.number(progress.evaluation_return, 1)
        if progress.HasField("evaluation_return")
        else figures.NONE,
        "goal": f"{progress.goal_return:,g}" if progress.HasField("goal_return") else figures.NONE,
        "version": figures.number(progress.policy_version),
        "lag": f"{progress.policy_lag:.1f}",
        "learner_idle": figures.percent(progress.learner_idle_ratio),
        "actor_idle": figures.percent(progress.actor_idle_ratio),
        "may": {"running": ("pause", "stop"), "paused": ("resume", "stop"), "created": ("stop",)}.get(state, ()),
    }


def charts(series: list[metrics_pb.Series]) -> list[dict[str, Any]]:
    """One chart per curve or group of curves, with its table. Curves that are always 0 are left out."""
    groups: dict[str, list[metrics_pb.Series]] = defaultdict(list)
    for each in series:
        if each.steps and each.name not in LEFT_OUT and (any(each.values) or each.name in TOGETHER):
            groups[TOGETHER.get(each.name, each.name)].append(each)
    order = sorted(groups, key=lambda name: (FIRST.index(name) if name in FIRST else 99, name))
    return [_chart(name, groups[name]) for name in order]


def _chart(group: str, series: list[metrics_pb.Series]) -> dict[str, Any]:
    steps = sorted({step for each in series for step in each.steps})
    lines: list[dict[str, Any]] = []
    for each in series:
        at = dict(zip(each.steps, each.values, strict=True))
        lines.append(
            {"name": _words(each.name.partition("/")[2] or each.name), "values": [_finite(at.get(s)) for s in steps]}
        )
    rows = sorted({*range(0, len(steps), max(1, len(steps) // TABLE_POINTS)), len(steps) - 1})
    return {
        "key": group.replace("/", "-").replace(" ", "-"),
        "title": _words(group.replace("/", ", ")),
        "chart": {"x": steps, "series": lines},
        "names": [line["name"] for line in lines],
        "table": [
            (figures.number(steps[index]), [_short(_last(line["values"], index)) for line in lines]) for index in rows
        ],
    }


def _words(name: str) -> str:
    return name.replace("_", " ")


def _finite(value: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    return float(f"{value:.6g}") if value is not None and value - value == 0 else None


def _last(values: list[float | None], index: int) -> float | None:
    """The value at the step, or the last one before it."""
    return next((value for value in reversed(values[: index + 1]) if value is not None), None)


def _short(value: float | None) -> str:
    return figures.NONE if value is None else f"{value:,.4g}"


async def models(view: View) -> dict[str, Any]:
    """The saved models, newest first."""
    found = await view.fleet.models()
    shown = [_model(model, view.pulse.now()) for model in found[:MOST_MODELS]]
    return {
        "models": shown,
        "rated": any(model["rating"] != figures.NONE for model in shown),
        "hidden": max(0, len(found) - MOST_MODELS),
    }


def _model(model: model_pb.Model, now: float) -> dict[str, Any]:
    about = MessageToDict(model.metadata)
    value = about.get("evaluation_return")
    return {
        "run": model.run_id,
        "version": model.version,
        "promoted": model.promoted,
        "created": figures.ago(model.create_time, now),
        "size": figures.size(model.size_bytes),
        "digest": model.digest.hex()[:12],
        "evaluation": figures.number(value, 1) if isinstance(value, int | float) else figures.NONE,
        "steps": figures.number(about["steps"]) if isinstance(about.get("steps"), int | float) else figures.NONE,
        "algorithm": str(about.get("algorithm", "")),
        "rating": _rating(about),
    }


def _rating(about: dict[str, Any]) -> str:
    """Elo of a game's model with half its interval, and the number of games."""
    values = [about.get(name) for name in ("elo", "elo_error", "match_games")]
    if not all(isinstance(value, int | float) for value in values):
        return figures.NONE
    elo, error, games = (float(value) for value in values if isinstance(value, int | float))
    return f"{elo:+,.0f} ± {error:,.0f} in {figures.counted(round(games), 'game')}"
