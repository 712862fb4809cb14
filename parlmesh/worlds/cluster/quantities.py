"""Kubernetes quantities as numbers: 250m, 1.5, 512Mi, 2G, 1e3. Ki is 1024 and k is 1000."""

import re

from parlmesh.errors import InvalidInput

_SUFFIXES = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "": 1.0,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
} | {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", start=1)}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([numkMGTPE]?|[KMGTPE]i)")


def quantity(given: object) -> float:
    """The number, in cores, bytes or the resource's own unit."""
    found = _QUANTITY.fullmatch(str(given).strip())
    if found is None:
        raise InvalidInput(f"{str(given)[:50]!r} is not a Kubernetes quantity", reason="QUANTITY")
    return float(found[1]) * _SUFFIXES[found[2]]


def megabytes(given: object) -> float:
    """A memory quantity in megabytes (10^6 bytes)."""
    return quantity(given) / 1e6
