"""Questions to a Prometheus server: a number for each deployment now, or series over a time."""

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from parlmesh.errors import FailedPrecondition, InvalidInput, Unavailable

_SECONDS = 10.0
_LARGEST_BYTES = 64 * 1024 * 1024


def check_url(url: str) -> None:
    """Only http and https, so that no file is ever read."""
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise InvalidInput(f"prometheus must be an http or https address, got {url!r}", reason="PROMETHEUS")


def instant(url: str, query: str, label: str = "deployment") -> dict[str, float]:
    """Numbers by the value of a label. NaN, as an empty rate gives it, is left out."""
    found = {}
    for series in _asked(url, "query", {"query": query}):
        name, value = series["metric"].get(label, ""), float(series["value"][1])
        if math.isfinite(value):
            found[name] = value
    return found


def over_time(
    url: str, query: str, start: float, end: float, step: float, label: str = "deployment"
) -> dict[str, dict[float, float]]:
    """By the value of a label: numbers by Unix time."""
    asked = {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
    found: dict[str, dict[float, float]] = {}
    for series in _asked(url, "query_range", asked):
        points = {float(time): float(value) for time, value in series["values"] if math.isfinite(float(value))}
        found.setdefault(series["metric"].get(label, ""), {}).update(points)
    return found


def _asked(url: str, what: str, parameters: Mapping[str, str]) -> list[dict[str, Any]]:
    check_url(url)
    address = f"{url.rstrip('/')}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as answer:  # noqa: S310 (the scheme is checked)
            body = answer.read(_LARGEST_BYTES + 1)
    except urllib.error.HTTPError as error:
        said = error.read(500).decode(errors="replace")
        raise FailedPrecondition(f"Prometheus refused {parameters['query']!r}: {error.code} {said}") from error
    except OSError as error:
        raise Unavailable(f"Prometheus at {url} does not answer: {error}", reason="PROMETHEUS") from error
    if len(body) > _LARGEST_BYTES:
        raise FailedPrecondition(f"Prometheus answered more than {_LARGEST_BYTES} bytes", reason="PROMETHEUS")
    try:
        return list(json.loads(body)["data"]["result"])
    except (ValueError, KeyError, TypeError) as error:
        raise FailedPrecondition(f"Prometheus' answer cannot be read: {error!r}", reason="PROMETHEUS") from error
