"""Addresses of the connected actors' metrics pages, for Prometheus' HTTP service discovery."""

import json
from collections.abc import Callable

from parlmesh.addresses import join_address
from parlmesh.telemetry.metrics_page import Page

from .core.actors.placement import Fleet

TARGETS_PATH = "/targets"


class Targets:
    """The actors that are connected and have a metrics page, as the scheduler sees them."""

    def __init__(self, fleet: Callable[[], Fleet | None]) -> None:
        """`fleet` returns None while another scheduler leads."""
        self._fleet = fleet

    def page(self) -> Page:
        """Called in the page's thread, so the list is copied in one step of the interpreter."""
        found = {}
        fleet = self._fleet()
        for actor in list(fleet.actors.values()) if fleet is not None else ():
            if actor.session and actor.metrics_port and actor.host:
                found[join_address(actor.host, actor.metrics_port)] = actor.node_id
        groups = [
            {"targets": [target], "labels": {"__meta_parlmesh_node_id": node_id, "service": "actor"}}
            for target, node_id in sorted(found.items())
        ]
        return Page("200 OK", "application/json", json.dumps(groups).encode())
