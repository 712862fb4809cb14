"""Reads one page of Prometheus metrics. The server may be slow, endless or malicious: time and bytes are bounded."""

import asyncio
import math
import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

from parlmesh.errors import InvalidInput

from ..config import matches

PAGE_SECONDS = 3.0
"""Time limit for the whole page."""
LARGEST_PAGE_BYTES = 4 << 20
MOST_SAMPLES = 200
_LONGEST_NAME = 200
_CHUNK_BYTES = 1 << 16


async def read_page(address: str, kept: Sequence[str]) -> dict[str, float]:
    """The wanted samples, by name with labels; raises ValueError or OSError when the page cannot be read."""
    body = await _body(address)
    return await asyncio.to_thread(_samples, body, kept)


async def _body(address: str) -> bytes:
    # HTTP/1.0 without a library: no redirects, no decompression, and one deadline for everything.
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or not address.isprintable() or " " in address:
        raise InvalidInput(f"a Prometheus page must be an http or https address, got {address!r}")
    secure = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    request = f"GET {path} HTTP/1.0\r\nHost: {parts.netloc.rpartition('@')[2]}\r\nAccept: text/plain\r\n\r\n"
    try:
        async with asyncio.timeout(PAGE_SECONDS):
            context = ssl.create_default_context() if secure else None
            reader, writer = await asyncio.open_connection(
                parts.hostname, parts.port or (443 if secure else 80), ssl=context
            )
            try:
                writer.write(request.encode())
                whole = bytearray()
                while chunk := await reader.read(_CHUNK_BYTES):
                    whole += chunk
                    if len(whole) > LARGEST_PAGE_BYTES:
                        raise ValueError(f"the page is larger than {LARGEST_PAGE_BYTES} bytes")
            finally:
                writer.close()
    except TimeoutError:
        raise ValueError(f"the page was not read within {PAGE_SECONDS:g} s") from None
    head, separator, body = bytes(whole).partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].split(b" ")
    if not separator or not status[0].startswith(b"HTTP/") or status[1:2] != [b"200"]:
        raise ValueError(f"it answered {head[:60]!r}, not 200")
    if b"chunked" in head.lower():
        raise ValueError("it answered in chunks, which HTTP/1.0 does not have")
    return body


def _samples(body: bytes, kept: Sequence[str]) -> dict[str, float]:
    from prometheus_client.parser import text_string_to_metric_families

    beginnings = tuple({pattern.removesuffix("*").partition("{")[0] for pattern in kept})
    # Parse only lines that may match: millions of others cost one prefix check each.
    lines = [line for line in body.decode(errors="replace").splitlines() if beginnings and line.startswith(beginnings)]
    found: dict[str, float] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            if not any(matches(pattern, name) for pattern in kept):
                continue
            if len(name) > _LONGEST_NAME:
                raise ValueError(f"a sample's name is longer than {_LONGEST_NAME}: {name[:60]}…")
            if len(found) >= MOST_SAMPLES and name not in found:
                raise ValueError(f"more than {MOST_SAMPLES} samples; keep fewer")
            if math.isfinite(sample.value):
                found[name] = float(sample.value)
    return found
