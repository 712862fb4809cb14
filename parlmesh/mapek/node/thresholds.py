"""When a reading is a symptom: a level with hysteresis, and a guard against flapping metrics."""

import itertools
from collections.abc import Mapping
from typing import Any

from ..config import ThresholdConfig
from ..types import Symptom

REMEMBERED = 20
STEADY = 8
"""Consecutive readings past the level before a symptom that was acted on is acted on again."""
FLAPPING = 4
"""Crossings of the level among the remembered readings at which a symptom counts as flapping."""


def clear_level(threshold: ThresholdConfig) -> float:
    """The level at which the symptom ends."""
    if threshold.clear is not None:
        return threshold.clear
    level = threshold.above if threshold.above is not None else threshold.below
    assert level is not None
    return level - abs(level) * 0.1 if threshold.above is not None else level + abs(level) * 0.1


def is_beyond(threshold: ThresholdConfig, value: float) -> bool:
    """Whether one reading is past the level."""
    if threshold.above is not None:
        return value >= threshold.above
    return threshold.below is not None and value <= threshold.below


def next_state(
    threshold: ThresholdConfig, metric: str, value: float, state: Mapping[str, Any]
) -> tuple[dict[str, Any], Symptom | None]:
    """The state after one reading, and the symptom if it is active.

    State: active, beyond and clear (consecutive readings), recent (the last readings, 1 = beyond).
    """
    beyond = is_beyond(threshold, value)
    clear = clear_level(threshold)
    cleared = value < clear if threshold.above is not None else value > clear
    was_active = bool(state.get("active", False))
    in_row = int(state.get("beyond", 0)) + 1 if beyond else 0
    clear_row = int(state.get("clear", 0)) + 1 if cleared else 0
    recent = (str(state.get("recent", "")) + ("1" if beyond else "0"))[-REMEMBERED:]
    active = clear_row < threshold.clear_cycles if was_active else in_row >= threshold.cycles
    after = {"active": active, "beyond": in_row, "clear": clear_row, "recent": recent}
    if not active:
        return after, None
    crossings = sum(first != second for first, second in itertools.pairwise(recent))
    level = threshold.above if threshold.above is not None else threshold.below
    assert level is not None
    side = "at or above" if threshold.above is not None else "at or below"
    if beyond:
        why = f"{metric} is {value:.4g}, {side} {level:g}"
    elif cleared:
        why = f"{metric} is {value:.4g}, back for {clear_row} of {threshold.clear_cycles} readings"
    else:
        why = f"{metric} is {value:.4g}, not yet past {clear:g}"
    symptom = Symptom(
        name=metric,
        metric=metric,
        value=value,
        limit=level,
        severity=threshold.severity,
        why=why,
        present=beyond,
        fresh=not was_active and "1" not in recent[: len(recent) - in_row],
        steady=recent.endswith("1" * STEADY),
        flapping=crossings >= FLAPPING,
    )
    return after, symptom
