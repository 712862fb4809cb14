"""One look at one page: what was asked for, by whom, and where the answers come from."""

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
    """What a page is made from."""

    page: str
    query: Mapping[str, str]
    visitor: Visitor
    fleet: Fleet
    pulse: Pulse
    config: DashboardConfig

    def asked(self, name: str, default: str = "") -> str:
        """A parameter of the address, bounded."""
        return self.query.get(name, default)[:300]

    def whole(self, name: str, most: int) -> int:
        """A parameter that is a whole number; 0 when it is left out."""
        text = self.query.get(name, "") or "0"
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= most):
            raise InvalidInput(f"{name} is {text[:40]!a}; it must be a whole number from 0 to {most:,}")
        return int(text)

    def link(self, **changes: str) -> str:
        """This page with other parameters; empty ones are left away."""
        query = {**self.query, **changes}
        query.pop("said", None)
        kept = {name: value for name, value in query.items() if value}
        return f"{self.page}?{urlencode(kept)}" if kept else self.page


@dataclass(frozen=True)
class Page:
    """A page by its address: its title, its template, and how its contents are found."""

    title: str
    template: str
    contents: Callable[[View], Awaitable[dict[str, Any]]]
    nav: str = ""
    """Which entry of the navigation it belongs to."""
