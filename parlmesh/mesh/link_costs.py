"""Link costs: ETX, ETT, latency, loss, batman-adv's TQ, or the file's own cost. All of them add up along a path.

Costs are integers in millionths. Integer sums below 2^53 are exact in any order, so distances joined from parts equal
those of a single Dijkstra bit for bit, and ties are exact.
"""

import math
from collections.abc import Callable
from enum import StrEnum
from typing import NoReturn

from parlmesh.errors import InvalidInput

from .measured_mesh import Link, Mesh

UNIT = 1_000_000
"""Cost units of one ETX, millisecond, hop …"""
MOST_COST = 10**11
"""Highest cost of a link: a path over 10,000 nodes stays below 2^53."""
FRAME_BYTES = 1500
"""Frame size for ETT."""
FULL_TQ = 255
HOP_PENALTY = 30
"""batman-adv's default penalty on the TQ per hop."""
_KILOMETRES_PER_MILLISECOND = 200.0
_HOP_MILLISECONDS = 0.1
_EARTH_KILOMETRES = 6371.0


class Metric(StrEnum):
    """The quantity that the best path minimises."""

    AUTO = "auto"
    """The first of cost, etx, tq, latency that every link has; else hops."""
    HOPS = "hops"
    COST = "cost"
    """The cost given in the file."""
    ETX = "etx"
    """Expected transmissions per frame: 1 / (forward delivery · reverse delivery)."""
    ETT = "ett"
    """Airtime in milliseconds: ETX · frame / rate."""
    LATENCY = "latency"
    """Milliseconds; unmeasured links between known coordinates count as light in fibre plus 0.1 ms per hop."""
    LOSS = "loss"
    """Highest delivery probability: -ln(1 - loss) adds up where probabilities multiply."""
    TQ = "tq"
    """-ln(TQ/255), with batman-adv's hop penalty."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise InvalidInput(f"metric must be one of {', '.join(cls)}, got {value!r}", reason="METRIC")


def chosen_metric(mesh: Mesh, metric: Metric) -> Metric:
    """The metric itself, with AUTO resolved for this mesh."""
    if metric is not Metric.AUTO:
        return metric
    for candidate in (Metric.COST, Metric.ETX, Metric.TQ, Metric.LATENCY):
        measure = _measure(mesh, candidate)
        if mesh.links and all(measure(link) is not None for link in mesh.links):
            return candidate
    return Metric.HOPS


def costs(mesh: Mesh, metric: Metric | str) -> list[int | None]:
    """The cost of every link in units; None for an unusable link. InvalidInput names a link without the metric."""
    chosen = chosen_metric(mesh, Metric(metric))
    measure = _measure(mesh, chosen)
    return [_units(mesh, link, measure(link), chosen) for link in mesh.links]


def etx_of(loss: float, returning: float) -> float:
    """ETX from the loss in both directions; infinite when one direction loses everything."""
    delivered = (1.0 - loss) * (1.0 - returning)
    return 1.0 / delivered if delivered > 0 else math.inf


def _units(mesh: Mesh, link: Link, value: float | None, metric: Metric) -> int | None:
    where = f"{mesh.name}: the link {mesh.nodes[link.source]} – {mesh.nodes[link.target]}"
    if value is None:
        raise InvalidInput(f"{where} has no {metric.value}; try another metric, hops always works", reason="METRIC")
    if math.isnan(value) or value < 0:
        raise InvalidInput(f"{where} has the {metric.value} {value}; it must be 0 or more", reason="METRIC")
    if math.isinf(value):
        return None
    if value * UNIT > MOST_COST:
        raise InvalidInput(f"{where} has the {metric.value} {value:g}, above {MOST_COST // UNIT}", reason="METRIC")
    return max(1, round(value * UNIT))


def _measure(mesh: Mesh, metric: Metric) -> Callable[[Link], float | None]:
    if metric in (Metric.ETX, Metric.ETT):
        backwards = {(link.target, link.source, link.cable): link.loss for link in mesh.links}
        etx = _etx(backwards)
        return etx if metric is Metric.ETX else lambda link: _ett(etx(link), link)
    if metric is Metric.LATENCY:
        return lambda link: link.latency_ms if link.latency_ms is not None else _light(mesh, link)
    return {
        Metric.HOPS: lambda link: 1.0,
        Metric.COST: lambda link: link.cost,
        Metric.LOSS: lambda link: None if link.loss is None else -_log(1.0 - _share(link.loss)),
        Metric.TQ: lambda link: None if link.tq is None else -_log(_tq(link.tq)),
    }[metric]


def _etx(backwards: dict[tuple[int, int, int], float | None]) -> Callable[[Link], float | None]:
    def measure(link: Link) -> float | None:
        if link.etx is not None:
            # OLSRd writes 0 for a missing link.
            if 0 < link.etx < 1:
                raise InvalidInput(f"an ETX must be 1 or more, got {link.etx:g}", reason="METRIC")
            return math.inf if link.etx == 0 else link.etx
        if link.loss is not None:
            back = backwards.get((link.source, link.target, link.cable))
            return etx_of(_share(link.loss), _share(link.loss if back is None else back))
        return None if link.tq is None else (FULL_TQ / link.tq if link.tq else math.inf)

    return measure


def _ett(etx: float | None, link: Link) -> float | None:
    if etx is None or link.rate_mbps is None:
        return None
    return etx * FRAME_BYTES * 8 / (link.rate_mbps * 1000.0) if link.rate_mbps > 0 else math.inf


def _tq(tq: float) -> float:
    if not 0 <= tq <= FULL_TQ:
        raise InvalidInput(f"a TQ must be 0 to {FULL_TQ}, got {tq:g}", reason="METRIC")
    return tq / FULL_TQ * (FULL_TQ - HOP_PENALTY) / FULL_TQ


def _share(loss: float) -> float:
    if not 0 <= loss <= 1:
        raise InvalidInput(f"a loss must be 0 to 1, got {loss:g}", reason="METRIC")
    return loss


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf


def _light(mesh: Mesh, link: Link) -> float | None:
    if not mesh.geographic:
        return None
    here, there = mesh.positions[link.source], mesh.positions[link.target]
    if here is None or there is None:
        return None
    (west, south), (east, north) = (tuple(map(math.radians, end)) for end in (here, there))
    half = math.sin((north - south) / 2) ** 2 + math.cos(south) * math.cos(north) * math.sin((east - west) / 2) ** 2
    kilometres = 2 * _EARTH_KILOMETRES * math.asin(min(1.0, math.sqrt(half)))
    return kilometres / _KILOMETRES_PER_MILLISECOND + _HOP_MILLISECONDS
