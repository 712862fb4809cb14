"""Validates nodes' answers. Nodes are not trusted: a bad answer affects only the node that sent it."""

import math
from collections.abc import Mapping
from typing import Any, get_args

from .config import Severity
from .node.analysis import MOST_METRICS
from .types import Symptom

LONGEST_NAME = 300
LONGEST_TEXT = 500
MOST_SYMPTOMS = 100


class Unusable(ValueError):
    """An answer that cannot be used; the message says why."""


def is_number(value: Any) -> bool:
    """Whether it is a finite number and not a bool."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number larger than any float
        return False


def readings(answer: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, str]]:
    """Metrics, and missing metrics with the reason. A value that is not a number counts as missing."""
    metrics, missing = answer.get("metrics"), answer.get("missing") or {}
    if not isinstance(metrics, dict) or not isinstance(missing, dict) or len(metrics) + len(missing) > MOST_METRICS:
        raise Unusable(f"its answer has no metrics, or more than {MOST_METRICS}")
    if any(len(name) > LONGEST_NAME for name in (*metrics, *missing)):
        raise Unusable(f"its answer has a metric whose name is longer than {LONGEST_NAME}")
    numbers = {name: float(value) for name, value in metrics.items() if is_number(value)}
    told = {name: str(why)[:LONGEST_TEXT] for name, why in missing.items()}
    return numbers, told | {name: "it is not a number" for name in metrics if name not in numbers}


def symptoms(answer: Mapping[str, Any]) -> tuple[Symptom, ...]:
    """The symptoms in an analysis answer."""
    found = answer.get("symptoms") or []
    if not isinstance(found, list) or len(found) > MOST_SYMPTOMS:
        raise Unusable(f"its analysis has no list of symptoms, or more than {MOST_SYMPTOMS}")
    return tuple(_symptom(each) for each in found)


def _symptom(told: Any) -> Symptom:
    if not isinstance(told, dict) or not told.keys() <= _FIELDS:
        raise Unusable("its analysis cannot be read: a symptom is not an object with the known fields")
    for name in ("name", "metric", "why"):
        if not isinstance(told.get(name), str) or len(told[name]) > (LONGEST_TEXT if name == "why" else LONGEST_NAME):
            raise Unusable(f"its analysis cannot be read: {name} of a symptom is not a short string")
    if not (is_number(told.get("value")) and is_number(told.get("limit"))):
        raise Unusable(f"its analysis cannot be read: value and limit of {told['name']} must be numbers")
    if told.get("severity") not in get_args(Severity):
        raise Unusable(f"its analysis cannot be read: severity of {told['name']} is unknown")
    if not all(isinstance(told.get(name, True), bool) for name in ("present", "fresh", "steady", "flapping")):
        raise Unusable(f"its analysis cannot be read: {told['name']} has a flag that is neither true nor false")
    return Symptom(**{**told, "value": float(told["value"]), "limit": float(told["limit"])})


_FIELDS = set(Symptom.__dataclass_fields__)


def standing(answer: Mapping[str, Any], allowed: list[str]) -> dict[str, float]:
    """How a planner ranked the allowed actions."""
    told = answer.get("standing")
    if not isinstance(told, dict):
        return {}
    return {name: float(told[name]) for name in allowed if is_number(told.get(name))}
