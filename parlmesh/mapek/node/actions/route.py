"""Reroutes the packets for a destination with `ip route`."""

import ipaddress
import json
from collections.abc import Mapping
from typing import Any

from parlmesh.errors import FailedPrecondition, InvalidInput

from ..settings import NodeConfig
from .action import Done, command, text_of


class Route:
    """Parameters: destination (an address, a network or default), and via (an address), device or both."""

    kind = "route"

    def target(self, parameters: Mapping[str, Any]) -> str:
        """The destination, as `ip` writes it."""
        destination = text_of(parameters, "destination", self.kind)
        if destination != "default":
            try:
                network = ipaddress.ip_network(destination)
            except ValueError as error:
                raise InvalidInput(f"destination of {self.kind} is {destination!r}: {error}") from None
            destination = str(network.network_address) if network.num_addresses == 1 else str(network)
        _hop(parameters)
        return destination

    async def before(self, parameters: Mapping[str, Any], settings: NodeConfig) -> Mapping[str, Any]:
        """The current routes."""
        return {"routes": await _routes(self.target(parameters))}

    async def do(self, parameters: Mapping[str, Any], settings: NodeConfig) -> Done:
        """Replaces the route and reads it back."""
        destination, hop = self.target(parameters), _hop(parameters)
        before = await _routes(destination)
        await command("ip", "route", "replace", destination, *hop)
        after = await _routes(destination)
        if not any(_is(route, parameters) for route in after):
            raise FailedPrecondition(f"the route to {destination} is {after} after it was replaced")
        return Done(f"{destination} goes {' '.join(hop)}; it went {_words(before)}", {"routes": before})

    async def undo(self, parameters: Mapping[str, Any], undo: Mapping[str, Any]) -> str:
        """Restores the previous routes, or deletes the new one if there was none."""
        destination, before = self.target(parameters), list(undo["routes"])
        if not before:
            # The action may have been interrupted before it added the route.
            if any(_is(route, parameters) for route in await _routes(destination)):
                await command("ip", "route", "del", destination, *_hop(parameters))
            return f"{destination} has no route of its own, as before"
        for route in before:
            hop = _hop({"via": route.get("gateway"), "device": route.get("dev")})
            metric = ("metric", str(int(route["metric"]))) if route.get("metric") else ()
            await command("ip", "route", "replace", destination, *hop, *metric)
        return f"{destination} goes {_words(before)} again"


def _hop(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    via, device = parameters.get("via"), parameters.get("device")
    hop: tuple[str, ...] = ()
    if via:
        try:
            hop += ("via", str(ipaddress.ip_address(via)))
        except ValueError as error:
            raise InvalidInput(f"via of route is {via!r}: {error}") from None
    if device:
        hop += ("dev", text_of({"device": device}, "device", "route"))
    if not hop:
        raise InvalidInput("route needs via, device or both")
    return hop


async def _routes(destination: str) -> list[dict[str, Any]]:
    """The routes to exactly this destination, best first."""
    family = ("-6",) if ":" in destination else ()
    output = await command("ip", *family, "-json", "route", "show", "exact", destination)
    return list(json.loads(output or "[]"))


def _is(route: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    via, device = parameters.get("via"), parameters.get("device")
    return (not via or route.get("gateway") == str(ipaddress.ip_address(via))) and (
        not device or route.get("dev") == device
    )


def _words(routes: list[dict[str, Any]]) -> str:
    if not routes:
        return "by no route of its own"
    return " and ".join(f"via {route.get('gateway', 'no gateway')} dev {route.get('dev', '?')}" for route in routes)
