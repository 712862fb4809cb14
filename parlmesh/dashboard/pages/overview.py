"""The first page: running and waiting tasks, lost actors, and whether the run learns."""

from collections import defaultdict
from typing import Any

from parlmesh.errors import FleetError
from parlmesh.orchestration.report.trace import Attempt
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import training_service_pb2 as training_pb

from .. import number_format as figures
from ..live_updates import STREAM_SECONDS
from ..page_request import View

PRIORITIES = ("critical", "high", "normal", "low", "background")
MOST_ROWS = 100
MOST_STREAM_ROWS = 24
MOST_MAP = 500
COLOURS = 6
"""Colours in the stream; the most frequent kinds get their own, the rest share the last."""


async def overview(view: View) -> dict[str, Any]:
    """Cards, stream, queue, map and the table of actors."""
    pulse = view.pulse
    contents: dict[str, Any] = {"cards": await _cards(view), "trouble": pulse.trouble}
    contents |= _stream(pulse.attempts, pulse.now())
    contents["queue"] = _queue(pulse.statistics)
    contents["history"] = _history(view)
    contents |= actor_table(view)
    contents["nodes"] = _map(pulse.actors)
    return contents


async def _cards(view: View) -> list[dict[str, str]]:
    statistics = view.pulse.statistics
    cards = _scheduler_cards(statistics, view.pulse.actors) if statistics is not None else []
    if not view.fleet.has_learner:
        return cards
    try:
        trainings = await view.fleet.trainings()
        if trainings:
            return cards + _run_cards(newest_running(trainings))
        federation = await view.fleet.federation()
    except FleetError:
        # The page of runs says why; a fleet works without a learner.
        return cards
    if federation is not None:
        cards.append(
            {
                "title": "Round",
                "value": figures.number(federation.round),
                "note": f"{figures.counted(federation.aggregated_rounds, 'round')} made a version"
                f" · {figures.federation_state(federation.state)}",
                "link": "rounds",
            }
        )
    return cards


def _scheduler_cards(statistics: pb.GetStatisticsResponse, actors: list[pb.Actor]) -> list[dict[str, str]]:
    states: dict[str, int] = defaultdict(int)
    for actor in actors:
        states[figures.actor_state(actor.state)] += 1
    others = [f"{count} {state}" for state, count in sorted(states.items()) if state != "ready"]
    waiting = f"{statistics.waiting_tasks:,} wait for others" if statistics.waiting_tasks else "none waits for another"
    oldest = statistics.oldest_queued_seconds
    return [
        {
            "title": "Tasks per second",
            "value": figures.rate(statistics.throughput_tps),
            "note": f"{figures.seconds(statistics.avg_task_latency_ms / 1e3)} from submit to outcome, mean of a minute",
            "link": "tasks",
        },
        {
            "title": "Queued",
            "value": figures.number(statistics.queued_tasks),
            "note": (f"oldest {figures.seconds(oldest)} · " if oldest else "") + waiting,
            "link": "tasks?state=queued",
        },
        {
            "title": "Running",
            "value": figures.number(statistics.running_tasks),
            "note": f"{figures.percent(statistics.worker_utilization)} of all slots busy",
            "link": "tasks?state=running",
        },
        {
            "title": "Actors ready",
            "value": figures.number(statistics.ready_workers),
            "of": figures.number(len(actors)) if actors else "",
            "note": " · ".join(others) or "none paused, none lost",
            "link": "#actors",
        },
        {
            "title": "Failed",
            "value": figures.number(statistics.failed_tasks),
            "note": f"{figures.counted(statistics.retried_tasks, 'attempt')} repeated since the start",
            "link": "tasks?state=failed",
        },
    ]


def newest_running(trainings: list[training_pb.Training]) -> training_pb.Training:
    """The run to show at a glance: the newest running one, else the newest."""
    running = training_pb.TRAINING_STATE_RUNNING
    return next((each for each in trainings if each.state == running), trainings[0])


def _run_cards(training: training_pb.Training) -> list[dict[str, str]]:
    progress = training.progress
    value = progress.episode_return if progress.HasField("episode_return") else None
    evaluation = figures.number(progress.evaluation_return, 1) if progress.HasField("evaluation_return") else "none yet"
    goal = f" · goal {progress.goal_return:,g}" if progress.HasField("goal_return") else ""
    policy = f"version {progress.policy_version:,}, lag {progress.policy_lag:.1f}"
    return [
        {
            "title": "Return",
            "value": figures.number(value, 1),
            "note": f"evaluation {evaluation}{goal} · {policy}",
            "link": "runs",
        },
    ]


def _stream(attempts: list[Attempt], now: float) -> dict[str, Any]:
    """One row per actor, one bar per attempt that ended in the window; x is 0 to 1,000."""
    start = now - STREAM_SECONDS
    kinds: dict[str, int] = defaultdict(int)
    by_actor: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        kinds[attempt.kind] += 1
        by_actor[attempt.actor_id].append(attempt)
    colours = {kind: min(index, COLOURS - 1) for index, kind in enumerate(sorted(kinds, key=lambda kind: -kinds[kind]))}
    rows = []
    for actor_id in sorted(by_actor, key=_natural)[:MOST_STREAM_ROWS]:
        bars = []
        for attempt in by_actor[actor_id]:
            left = max(0.0, (attempt.start - start) / STREAM_SECONDS * 1_000)
            width = max(2.0, (attempt.end - start) / STREAM_SECONDS * 1_000 - left)
            bars.append(
                {
                    "x": f"{min(left, 998):.0f}",
                    "width": f"{min(width, 1_000 - left):.0f}",
                    "class": "bad" if attempt.failed else f"k{colours[attempt.kind]}",
                    "title": f"{attempt.kind} {attempt.task_id}: {attempt.state.lower()}, "
                    f"{figures.seconds(attempt.seconds)}",
                }
            )
        rows.append({"actor": actor_id, "bars": bars})
    table = [
        {
            "kind": kind,
            "class": f"k{colours[kind]}",
            "count": kinds[kind],
            "mean": figures.seconds(sum(each.seconds for each in attempts if each.kind == kind) / max(1, kinds[kind])),
            "failed": sum(1 for each in attempts if each.kind == kind and each.failed),
        }
        for kind in colours
    ]
    return {
        "stream": rows,
        "stream_kinds": table,
        "stream_hidden": max(0, len(by_actor) - MOST_STREAM_ROWS),
        "stream_seconds": int(STREAM_SECONDS),
    }


def _queue(statistics: pb.GetStatisticsResponse | None) -> list[dict[str, Any]]:
    counts = dict(statistics.queued_by_priority) if statistics is not None else {}
    most = max(1, *counts.values()) if counts else 1
    return [
        {"priority": name, "count": counts.get(name, 0), "width": f"{counts.get(name, 0) / most * 100:.1f}"}
        for name in PRIORITIES
    ]


def _history(view: View) -> dict[str, Any]:
    samples = list(view.pulse.history.recent)
    points = samples[:: max(1, len(samples) // 240)]
    return {
        "chart": {
            "x": [round(each.time) for each in points],
            "time": True,
            "series": [
                {"name": "tasks/s", "values": [round(each.tasks_per_second, 1) for each in points]},
                {"name": "queued", "values": [each.queued for each in points], "scale": "right"},
            ],
        },
        "table": [
            {"time": figures.clock(each.time), "rate": figures.rate(each.tasks_per_second), "queued": each.queued}
            for each in reversed(points[:: max(1, len(points) // 12)])
        ],
    }


def actor_table(view: View) -> dict[str, Any]:
    """The actors that match the filters, paged."""
    wanted, text = view.asked("actors"), view.asked("q").lower()
    chosen = [
        actor
        for actor in sorted(view.pulse.actors, key=lambda actor: _natural(actor.actor_id))
        if (not wanted or (figures.actor_state(actor.state) != "ready" if wanted == "odd" else True))
        and (not text or text in f"{actor.actor_id} {actor.node_id}".lower())
    ]
    first = view.whole("from", 1_000_000)
    shown = chosen[first : first + MOST_ROWS]
    return {
        "actors": [_actor(view, actor) for actor in shown],
        "actors_all": len(chosen),
        "actors_known": len(view.pulse.actors),
        "actors_first": first,
        "actors_next": view.link(**{"from": str(first + MOST_ROWS)}) if len(chosen) > first + MOST_ROWS else "",
        "actors_previous": view.link(**{"from": str(max(0, first - MOST_ROWS))}) if first else "",
        "actors_q": view.asked("q"),
        "actors_wanted": wanted,
    }


def _actor(view: View, actor: pb.Actor) -> dict[str, Any]:
    state = figures.actor_state(actor.state)
    rates = view.pulse.rates.get(actor.actor_id)
    return {
        "id": actor.actor_id,
        "node": actor.node_id,
        "state": state,
        "tone": figures.tone(state),
        "reason": actor.quarantine_reason,
        "slots": actor.slots,
        "running": actor.running_tasks,
        "completed": figures.number(actor.completed_tasks),
        "failed": figures.number(actor.failed_tasks),
        "rate": figures.rate(sum(rates) / len(rates)) if rates else figures.NONE,
        "spark": figures.polyline(list(rates)) if rates else "",
        "version": actor.policy_version or figures.NONE,
        "heartbeat": figures.ago(actor.last_heartbeat_time, view.pulse.now()),
        "kinds": ", ".join(sorted(actor.kinds)),
    }


def _map(actors: list[pb.Actor]) -> list[dict[str, Any]]:
    nodes: dict[str, list[dict[str, str]]] = defaultdict(list)
    for actor in sorted(actors, key=lambda actor: _natural(actor.actor_id))[:MOST_MAP]:
        state = figures.actor_state(actor.state)
        busy = actor.running_tasks > 0 and state == "ready"
        nodes[actor.node_id].append(
            {
                "id": actor.actor_id,
                "tone": figures.tone(state) if busy or state != "ready" else "idle",
                "title": f"{actor.actor_id}: {state}, {actor.running_tasks} of {actor.slots} running",
            }
        )
    return [{"node": node, "actors": members} for node, members in sorted(nodes.items(), key=lambda n: _natural(n[0]))]


def _natural(name: str) -> tuple[str, int, str]:
    """Sort key that puts actor-2 before actor-10."""
    head = name.rstrip("0123456789")
    tail = name[len(head) :][:18]
    return head, int(tail) if tail else -1, name
