"""Connects and resets repeatedly, at a rate or as fast as it can (0); a byte to stdout for each."""

import os
import socket
import struct
import sys
import time


def main(host: str, port: int, rate: float) -> None:
    # In reality it runs elsewhere: it costs a server connections, not time on the server's cores.
    os.nice(19)
    started, count = time.perf_counter(), 0
    while True:
        connection = socket.create_connection((host, port), timeout=30)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        count += 1
        os.write(1, b"x")
        if rate and (ahead := started + count / rate - time.perf_counter()) > 0:
            time.sleep(ahead)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
