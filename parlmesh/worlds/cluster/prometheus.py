"""Prometheus queries: the current value for each deployment, or series over a period."""

import http.client
import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from parlmesh.errors import FailedPrecondition, InvalidInput, Unavailable

_SECONDS = 10.0
_LARGEST_BYTES = 64 * 1024 * 1024


def check_url(url: str) -> None:
    """Allows only http and https, so that no local file is ever read."""
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise InvalidInput(f"prometheus must be an http or https address, got {url!r}", reason="PROMETHEUS")


def instant(url: str, query: str, label: str = "deployment") -> dict[str, float]:
    """Values by label value, without NaN, which an empty rate returns."""
    answer = _asked(url, "query", {"query": query})
    with _readable(query):
        values = [(_name(series, label), float(series["value"][1])) for series in answer]
    _refuse_twins([name for name, _ in values], query, label)
    return {name: value for name, value in values if math.isfinite(value)}


def over_time(
    url: str, query: str, start: float, end: float, step: float, label: str = "deployment"
) -> dict[str, dict[float, float]]:
    """Values by label value and Unix time."""
    asked = {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
    answer = _asked(url, "query_range", asked)
    with _readable(query):
        found = [
            (_name(series, label), {float(time): float(value) for time, value in series["values"]}) for series in answer
        ]
    _refuse_twins([name for name, _ in found], query, label)
    return {name: {time: value for time, value in points.items() if math.isfinite(value)} for name, points in found}


def _name(series: Mapping[str, Any], label: str) -> str:
    return str(series["metric"].get(label, ""))


def _refuse_twins(names: list[str], query: str, label: str) -> None:
    """Rejects several series with one name, of which one would silently win: the query must aggregate them."""
    twin = next((name for name in names if names.count(name) > 1), None)
    if twin is not None:
        raise FailedPrecondition(
            f"{query!r} gives more than one series for the {label} {twin or '(none)'}; aggregate it by ({label})",
            reason="PROMETHEUS",
        )


def _asked(url: str, what: str, parameters: Mapping[str, str]) -> list[Any]:
    check_url(url)
    address = f"{url.rstrip('/')}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as answer:  # noqa: S310 (the scheme is checked)
            body = answer.read(_LARGEST_BYTES + 1)
    except urllib.error.HTTPError as error:
        said = f"Prometheus refused {parameters['query']!r}: {error.code} {_reason(error)}"
        raise FailedPrecondition(said, reason="PROMETHEUS") from error
    except (OSError, http.client.HTTPException) as error:
        said = _one_line(getattr(error, "reason", error))
        raise Unavailable(f"Prometheus at {url} does not answer: {said}", reason="PROMETHEUS") from error
    if len(body) > _LARGEST_BYTES:
        raise FailedPrecondition(f"Prometheus answered more than {_LARGEST_BYTES} bytes", reason="PROMETHEUS")
    try:
        found = json.loads(body)
    except ValueError:
        said = f"the server at {url} is not Prometheus: it answered {body[:40]!r}, which is not JSON"
        raise FailedPrecondition(said, reason="PROMETHEUS") from None
    with _readable(parameters["query"]):
        return list(found["data"]["result"])


def _reason(error: urllib.error.HTTPError) -> str:
    """Prometheus' own error message, or the start of the answer."""
    try:
        body = error.read(2000)
        said = json.loads(body)["error"]
    except (OSError, http.client.HTTPException):
        said = error.reason
    except (ValueError, KeyError, TypeError):
        said = body.decode(errors="replace")
    return _one_line(said)


def _one_line(said: object) -> str:
    return " ".join(str(said).split())[:200]


@contextmanager
def _readable(query: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        said = f"Prometheus' answer to {query!r} cannot be read: {_one_line(repr(error))}"
        raise FailedPrecondition(said, reason="PROMETHEUS") from error
