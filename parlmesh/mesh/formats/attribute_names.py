"""Maps the attribute names that files use for links to ours, with unit factors."""

from collections.abc import Mapping
from typing import Any

# By name in lower case: our name, and the factor to our unit.
_NAMES: Mapping[str, tuple[str, float]] = {
    "cost": ("cost", 1.0),
    "weight": ("cost", 1.0),
    "metric": ("cost", 1.0),
    "etx": ("etx", 1.0),
    "loss": ("loss", 1.0),
    "packet_loss": ("loss", 1.0),
    "loss_rate": ("loss", 1.0),
    "latency": ("latency_ms", 1.0),
    "latency_ms": ("latency_ms", 1.0),
    "delay": ("latency_ms", 1.0),
    "delay_ms": ("latency_ms", 1.0),
    "rtt_ms": ("latency_ms", 0.5),
    "tq": ("tq", 1.0),
    "rate_mbps": ("rate_mbps", 1.0),
    "bandwidth_mbps": ("rate_mbps", 1.0),
    "capacity": ("rate_mbps", 1.0),
    "capacity_mbps": ("rate_mbps", 1.0),
    "linkspeedraw": ("rate_mbps", 1e-6),
}


def facts_of(attributes: Mapping[str, Any]) -> dict[str, float]:
    """A link's known numeric attributes."""
    found: dict[str, float] = {}
    for name, value in attributes.items():
        known = _NAMES.get(name.lower())
        number = as_number(value)
        if known is not None and number is not None:
            found.setdefault(known[0], number * known[1])
    return found


def as_number(value: Any) -> float | None:
    """The number, also from a string; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def position_of(attributes: Mapping[str, Any]) -> tuple[tuple[float, float], bool] | None:
    """A node's position, and whether it is longitude and latitude."""
    lower = {name.lower(): value for name, value in attributes.items()}
    for east, north, geographic in (("longitude", "latitude", True), ("lon", "lat", True), ("lng", "lat", True),
                                    ("x", "y", False)):  # fmt: skip
        x, y = as_number(lower.get(east)), as_number(lower.get(north))
        if x is not None and y is not None:
            return (x, y), geographic
    return None
