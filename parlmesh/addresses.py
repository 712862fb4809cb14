"""Parses addresses and tells whether they are on this machine. Does not resolve names."""

import ipaddress


def join_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_addresses(addresses: str) -> list[str]:
    """Splits a comma-separated list of addresses."""
    return [each.strip() for each in addresses.split(",")]


def host_of(address: str) -> str:
    """The host in a channel's address; empty for a unix socket."""
    if address.startswith(("unix:", "unix-abstract:")):
        return ""
    for scheme in ("dns:", "ipv4:", "ipv6:"):
        if address.startswith(scheme):
            address = address.removeprefix(scheme).rpartition("/")[2]
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.rpartition(":")[0] or address


def is_loopback(host: str) -> bool:
    """Whether traffic to the host stays on this machine; an empty host is a unix socket."""
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
