"""Channels to the fleet's servers."""

from functools import partial

import grpc.aio

from parlmesh.addresses import host_of, is_loopback, split_addresses
from parlmesh.errors import ConfigError
from parlmesh.security import SecurityConfig

from ..credentials import bearer_for, channel_credentials
from ..grpc_options import channel_options
from ..message_limit import MOST_MESSAGE_BYTES
from .bearer_channel import BearerChannel
from .leader_discovery import LeaderChannel
from .names import name_in

_LAST_PORT = 65535
NO_SECURITY = SecurityConfig()


def open_channel(
    address: str,
    security: SecurityConfig = NO_SECURITY,
    *,
    max_message_bytes: int = MOST_MESSAGE_BYTES,
) -> grpc.aio.Channel:
    """A channel with the fleet's keepalive; connects on first use and reconnects by itself.

    Several addresses separated by commas, or all that DNS has for the name in `dns:host:port`, belong to servers of
    which one leads; calls go to the leader.
    The server limits the size of messages (`listen.max_message_bytes`), unless the caller wants less.
    """
    addresses = split_addresses(address)
    for each in addresses:
        _check(each)
    names = [name for each in addresses if (name := name_in(each)) is not None]
    if len(addresses) > 1 or names:
        plain = [each for each in addresses if name_in(each) is None]
        for name in names:
            # Credentials that cannot be used fail now, not when the name is looked up.
            bearer_for(name.authority, security)
            channel_credentials(security)
        named = {name: partial(_open, security, max_message_bytes, name.authority) for name in names}
        return LeaderChannel([_open(security, max_message_bytes, "", each) for each in plain], plain, named)
    return _open(security, max_message_bytes, "", addresses[0])


def _open(security: SecurityConfig, max_message_bytes: int, authority: str, address: str) -> grpc.aio.Channel:
    """`authority`: the name that the address was found under, which its certificate is for."""
    bearer = bearer_for(address, security)
    credentials = channel_credentials(security)
    options: list[tuple[str, int | str]] = [*channel_options(max_message_bytes, loopback=is_loopback(host_of(address)))]
    if authority:
        options.append(("grpc.default_authority", authority))
        if credentials is not None:
            options.append(("grpc.ssl_target_name_override", host_of(authority)))
    channel = (
        grpc.aio.insecure_channel(address, options=options)
        if credentials is None
        else grpc.aio.secure_channel(address, credentials, options=options)
    )
    return channel if bearer is None else BearerChannel(channel, bearer)


def _check(address: str) -> None:
    host, separator, port = address.rpartition(":")
    if not separator or not port:
        raise ConfigError(f'address must be host:port, got "{address}"', address=address)
    if address.startswith(("unix:", "unix-abstract:")):
        return
    # gRPC takes the number modulo 65536 and dials another port.
    if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= _LAST_PORT:
        raise ConfigError(f'address is "{address}"; its port must be 1 to {_LAST_PORT}', address=address)
