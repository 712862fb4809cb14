"""Channels to the fleet's servers."""

import grpc.aio

from parlmesh.addresses import host_of, is_loopback, split_addresses
from parlmesh.config.model import MEBIBYTE
from parlmesh.errors import ConfigError
from parlmesh.security import SecurityConfig

from ..credentials import bearer_for, channel_credentials
from ..grpc_options import channel_options
from .bearer_channel import BearerChannel
from .leader_channel import LeaderChannel

MOST_MESSAGE_BYTES = 1024 * MEBIBYTE
_LAST_PORT = 65535
NO_SECURITY = SecurityConfig()


def open_channel(
    address: str,
    security: SecurityConfig = NO_SECURITY,
    *,
    max_message_bytes: int = MOST_MESSAGE_BYTES,
) -> grpc.aio.Channel:
    """A channel with the fleet's keepalive; connects on first use and reconnects by itself.

    Several addresses with commas between them are of servers of which one leads: calls go to that one.
    What a message may hold is the server's to limit (`listen.max_message_bytes`), unless the caller wants less.
    """
    addresses = split_addresses(address)
    for each in addresses:
        _check(each)
    if len(addresses) > 1:
        channels = [open_channel(each, security, max_message_bytes=max_message_bytes) for each in addresses]
        return LeaderChannel(channels, addresses)
    address = addresses[0]
    bearer = bearer_for(address, security)
    credentials = channel_credentials(security)
    options = channel_options(max_message_bytes, loopback=is_loopback(host_of(address)))
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
