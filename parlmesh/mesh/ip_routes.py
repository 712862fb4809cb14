"""A routing table as Linux `ip route` lines. Runs nothing."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from parlmesh.errors import InvalidInput

from .routes import RoutingTable


@dataclass(frozen=True, slots=True)
class Addresses:
    """How to reach nodes: every node's own address, and the address and device for each neighbour."""

    nodes: Mapping[str, str]
    neighbours: Mapping[tuple[str, str], tuple[str, str]]
    """Address and device by (node, neighbour); a missing pair uses the neighbour's own address."""


def own_addresses(nodes: tuple[str, ...], subnet: str = "") -> Addresses:
    """The nodes' names if they are addresses, or consecutive addresses of the subnet."""
    if not subnet:
        try:
            return Addresses({node: str(ipaddress.ip_address(node)) for node in nodes}, {})
        except ValueError:
            raise InvalidInput(
                "the nodes' names are not addresses; --subnet 10.77.0.0/16 assigns some", reason="ADDRESSES"
            ) from None
    try:
        network = ipaddress.ip_network(subnet)
    except ValueError as error:
        raise InvalidInput(f"subnet {subnet!r} is not valid: {error}", reason="ADDRESSES") from None
    if network.num_addresses - 2 < len(nodes):
        raise InvalidInput(f"subnet {subnet} has no room for {len(nodes)} nodes", reason="ADDRESSES")
    return Addresses({node: str(network[index + 1]) for index, node in enumerate(nodes)}, {})


def ip_routes(table: RoutingTable, node: str, addresses: Addresses) -> list[str]:
    """The commands for this node: a host route to every other, marked unreachable where there is no path."""
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
        # A next hop outside every interface's network would need onlink, and onlink needs a device.
        lines.append(f"ip route replace {host} via {via}" + (f" dev {device}" if device else ""))
    return lines
