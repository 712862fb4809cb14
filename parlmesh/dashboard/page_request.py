"""One request for a page: its parameters, its visitor, and the sources of its contents."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from parlmesh.errors import InvalidInput

from .access import Visitor
from .config import DashboardConfig
from .fleet_calls import Fleet
from .live_updates import Pulse


@dataclass(frozen=True)
class View:
    """Everything a page is made from."""

    page: str
    query: Mapping[str, str]
    visitor: Visitor
    fleet: Fleet
    pulse: Pulse
    config: DashboardConfig

    def asked(self, name: str, default: str = "") -> str:
        """A query parameter, truncated."""
        return self.query.get(name, default)[:300]

    def whole(self, name: str, most: int) -> int:
        """A query parameter that is a whole number; 0 if it is missing."""
        text = self.query.get(name, "") or "0"
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= most):
            raise InvalidInput(f"{name} is {text[:40]!a}; it must be a whole number from 0 to {most:,}")
        return int(text)

    def link(self, **changes: str) -> str:
        """A link to this page with changed parameters; empty ones are dropped."""
        query = {**self.query, **changes}
        query.pop("said", None)
        kept = {name: value for name, value in query.items() if value}
        return f"{self.page}?{urlencode(kept)}" if kept else self.page


@dataclass(frozen=True)
class Page:
    """A page: its title, its template, and the function that finds its contents."""

    title: str
    template: str
    contents: Callable[[View], Awaitable[dict[str, Any]]]
    nav: str = ""
    """The navigation entry it belongs to."""
