"""HTTP/2 by hand, frame by frame, as a stranger could write it from the specification."""

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, CONTINUATION = 0, 1, 3, 4, 9
END_STREAM, END_HEADERS, ACKNOWLEDGED = 1, 4, 1
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_HEADER_LIST_SIZE = 3, 4, 6
_LARGEST_FRAME = 16_384
_INDEXED_POST, _INDEXED_HTTP = 0x83, 0x86


class Frame(NamedTuple):
    """A received frame."""

    kind: int
    flags: int
    stream: int
    body: bytes


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def literal(name: bytes, value: bytes, *, kept: bool = False) -> bytes:
    """A header field; a stored one has index 62 afterwards."""
    return bytes([0x40 if kept else 0x00, len(name)]) + name + bytes([len(value)]) + value


def call_headers(method: str) -> bytes:
    fields = ((b":path", method.encode()), (b":authority", b"x"), (b"content-type", b"application/grpc"))
    return bytes([_INDEXED_POST, _INDEXED_HTTP]) + b"".join(literal(*field) for field in fields)


def header_frames(stream: int, block: bytes, flags: int = 0) -> bytes:
    """A header block in as many frames as it needs."""
    parts = [block[at : at + _LARGEST_FRAME] for at in range(0, len(block), _LARGEST_FRAME)]
    last = len(parts) - 1
    return b"".join(
        frame(
            HEADERS if at == 0 else CONTINUATION,
            (flags if at == 0 else 0) | (END_HEADERS if at == last else 0),
            stream,
            part,
        )
        for at, part in enumerate(parts)
    )


class Connection:
    """A connection after the exchange of settings."""

    def __init__(self, at: socket.socket) -> None:
        self._socket = at
        self._buffer = b""
        at.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
        first = self.read()
        assert first.kind == SETTINGS, first
        self.settings = {number: value for number, value in struct.iter_unpack(">HI", first.body)}
        self.send(frame(SETTINGS, ACKNOWLEDGED, 0, b""))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self) -> Frame:
        head = self._exactly(9)
        length, stream = int.from_bytes(head[:3], "big"), int.from_bytes(head[5:], "big")
        return Frame(head[3], head[4], stream, self._exactly(length))

    def _exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            came = self._socket.recv(1 << 16)
            if not came:
                raise ConnectionError("the server ended the connection")
            self._buffer += came
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken


@contextlib.contextmanager
def connected(address: str, seconds: float) -> Iterator[Connection]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=seconds) as at:
        yield Connection(at)
