"""Reads a metrics page as a scraper does."""

import re
import urllib.request

_SECONDS = 10.0


def scraped(port: int) -> dict[str, float]:
    """All samples of the page on a local port, by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_SECONDS) as answer:
        page = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^(\S+) (\S+)$", page, re.MULTILINE)}
