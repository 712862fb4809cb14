"""Hosts of addresses, and whether they leave this machine. Resolves no name."""

import ipaddress


def join_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_addresses(addresses: str) -> list[str]:
    """Each of a list with commas; the text itself where there is no comma."""
    return [each.strip() for each in addresses.split(",")]


def host_of(address: str) -> str:
    """The host a channel's address names; empty for a unix socket."""
    if address.startswith(("unix:", "unix-abstract:")):
        return ""
    for scheme in ("dns:", "ipv4:", "ipv6:"):
        if address.startswith(scheme):
            address = address.removeprefix(scheme).rpartition("/")[2]
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.rpartition(":")[0] or address


def is_loopback(host: str) -> bool:
    """Whether the host (or, empty, the unix socket) never leaves this machine."""
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
