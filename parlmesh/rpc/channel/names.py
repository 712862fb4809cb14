"""DNS names of several servers: all addresses of a name, resolved again at intervals."""

import asyncio
import socket
from typing import NamedTuple

from parlmesh.addresses import join_address

SCHEME = "dns:"
MOST_ADDRESSES = 64


class Name(NamedTuple):
    """`dns:host:port` of several servers, one of which leads."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        """The name that certificates are made for."""
        return join_address(self.host, self.port)

    async def addresses(self) -> list[str]:
        """The addresses that DNS has now; none when it has no answer."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError:
            return []
        return sorted({join_address(str(each[4][0]), self.port) for each in found})[:MOST_ADDRESSES]


def name_in(address: str) -> Name | None:
    """The name in `dns:host:port` or `dns:///host:port`; None for any other address."""
    if not address.startswith(SCHEME):
        return None
    host, _, port = address.removeprefix(SCHEME).removeprefix("///").rpartition(":")
    return Name(host.strip("[]"), int(port))
