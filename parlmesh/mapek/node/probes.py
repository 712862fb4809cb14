"""Round trips to neighbours and services, and metric pages. A target that does not answer is missing, with a reason."""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence

from parlmesh.errors import InvalidInput

from .metric_page import read_page

TRIES = 3
_SECONDS = 1.0
_HOST = re.compile(r"^[A-Za-z0-9:][A-Za-z0-9.:-]{0,252}$")
_TIMES = re.compile(rb"time=([0-9.]+) ms")


async def round_trips(neighbours: Mapping[str, str]) -> tuple[dict[str, float], dict[str, str]]:
    """rtt_ms.NAME, the median of three, and loss_percent.NAME. If all are lost, loss is 100 and rtt_ms is missing."""
    names = list(neighbours)
    found = await asyncio.gather(*(_times(neighbours[name]) for name in names))
    metrics: dict[str, float] = {}
    missing: dict[str, str] = {}
    for name, times in zip(names, found, strict=True):
        metrics[f"loss_percent.{name}"] = 100.0 * (TRIES - len(times)) / TRIES
        if times:
            metrics[f"rtt_ms.{name}"] = sorted(times)[len(times) // 2]
        else:
            missing[f"rtt_ms.{name}"] = f"{neighbours[name]} answered none of {TRIES} tries"
    return metrics, missing


async def _times(target: str) -> list[float]:
    if target.startswith("ping://"):
        return await _pinged(_host(target.removeprefix("ping://")))
    host, separator, port = target.rpartition(":")
    if not separator or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidInput(f"a neighbour must be host:port or ping://host, got {target!r}")
    times = [await _connected(_host(host.strip("[]")), int(port)) for _ in range(TRIES)]
    return [each for each in times if each is not None]


async def _connected(host: str, port: int) -> float | None:
    started = time.perf_counter()
    try:
        async with asyncio.timeout(_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except OSError:  # TimeoutError is one
        return None
    milliseconds = (time.perf_counter() - started) * 1e3
    writer.close()
    return milliseconds


async def _pinged(host: str) -> list[float]:
    """Uses the system's ping command: raw sockets need privileges that an actor should not have."""
    process = await asyncio.create_subprocess_exec(
        "ping", "-n", "-c", str(TRIES), "-i", "0.2", "-W", f"{_SECONDS:g}", host,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_SECONDS * (TRIES + 1)):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return []
    return [float(each) for each in _TIMES.findall(output)][:TRIES]


def _host(text: str) -> str:
    if not _HOST.match(text):
        raise InvalidInput(f"a neighbour's host must be a name or an address, got {text!r}")
    return text


async def pages(addresses: Mapping[str, str], kept: Sequence[str]) -> tuple[dict[str, float], dict[str, str]]:
    """NAME:SAMPLE from every Prometheus page, with the page's labels, e.g. api:requests_total{code="500"}."""
    names = list(addresses)
    found = await asyncio.gather(*(read_page(addresses[name], kept) for name in names), return_exceptions=True)
    metrics: dict[str, float] = {}
    missing: dict[str, str] = {}
    for name, page in zip(names, found, strict=True):
        if isinstance(page, InvalidInput):
            raise page
        if isinstance(page, BaseException):
            missing[f"{name}:"] = f"{addresses[name]}: {page or type(page).__name__}"[:300]
            continue
        metrics |= {f"{name}:{sample}": value for sample, value in page.items()}
    return metrics, missing
