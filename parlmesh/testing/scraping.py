"""A metrics page as a scraper sees it."""

import re
import urllib.request

_SECONDS = 10.0


def scraped(port: int) -> dict[str, float]:
    """Every sample of the page on this machine's port, by its name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_SECONDS) as answer:
        page = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^(\S+) (\S+)$", page, re.MULTILINE)}
