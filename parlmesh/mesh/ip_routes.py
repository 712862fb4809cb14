"""A routing table as `ip route` lines, for Linux. Only lines: nothing is run here."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from parlmesh.errors import InvalidInput

from .routes import RoutingTable


@dataclass(frozen=True, slots=True)
class Addresses:
    """How nodes are reached: every node's own address, and the address and device by which a neighbour is."""

    nodes: Mapping[str, str]
    neighbours: Mapping[tuple[str, str], tuple[str, str]]
    """By (node, neighbour): address and device; a pair that is not there is reached at the neighbour's own address."""


def own_addresses(nodes: tuple[str, ...], subnet: str = "") -> Addresses:
    """Names that are addresses as they are; else the nodes' places in the subnet, in order."""
    if not subnet:
        try:
            return Addresses({node: str(ipaddress.ip_address(node)) for node in nodes}, {})
        except ValueError:
            raise InvalidInput(
                "the nodes' names are no addresses; --subnet 10.77.0.0/16 numbers them", reason="ADDRESSES"
            ) from None
    try:
        network = ipaddress.ip_network(subnet)
    except ValueError as error:
        raise InvalidInput(f"subnet {subnet!r} is none: {error}", reason="ADDRESSES") from None
    if network.num_addresses - 2 < len(nodes):
        raise InvalidInput(f"subnet {subnet} has no room for {len(nodes)} nodes", reason="ADDRESSES")
    return Addresses({node: str(network[index + 1]) for index, node in enumerate(nodes)}, {})


def ip_routes(table: RoutingTable, node: str, addresses: Addresses) -> list[str]:
    """What this node runs: a host route to every other. What cannot be reached is said to be so, at once."""
    number = table.nodes.index(node)
    lines = []
    for goal, hop in zip(table.nodes, table.next_hop[number].tolist(), strict=True):
        if goal == node:
            continue
        target = ipaddress.ip_address(addresses.nodes[goal])
        host = f"{target}/{target.max_prefixlen}"
        if hop < 0:
            lines.append(f"ip route replace unreachable {host}")
            continue
        neighbour = table.nodes[hop]
        via, device = addresses.neighbours.get((node, neighbour), (addresses.nodes[neighbour], ""))
        # A next hop in no network of an interface needs onlink, and onlink a device.
        lines.append(f"ip route replace {host} via {via}" + (f" dev {device}" if device else ""))
    return lines
