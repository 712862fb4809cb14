"""The metrics page of a process, in a daemon thread on its own port. Declares no metric."""

import contextlib
import socket
from threading import Thread
from typing import Any

from parlmesh.config import MetricsConfig
from parlmesh.errors import Unavailable


class MetricsServer:
    """A metrics page being served; `close` frees the port."""

    def __init__(self, server: Any, thread: Thread) -> None:
        self._server = server
        self._thread = thread
        self.port: int = server.server_port

    def close(self) -> None:
        stopping = Thread(target=self._server.shutdown)
        stopping.start()
        # The server looks for its end twice a second, or when somebody calls.
        with contextlib.suppress(OSError), socket.create_connection(self._server.server_address[:2], timeout=1.0):
            pass
        stopping.join()
        self._server.server_close()
        self._thread.join(timeout=5.0)


def serve_metrics(config: MetricsConfig) -> MetricsServer | None:
    """Starts the metrics page, or nothing when the port is null."""
    if config.port is None:
        return None
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(config.port, addr=config.host)
    except OSError as error:
        address = f"{config.host}:{config.port}"
        raise Unavailable(
            f"cannot listen on {address} for metrics: {(error.strerror or str(error)).lower()}",
            reason="CANNOT_LISTEN",
            address=address,
        ) from error
    return MetricsServer(server, thread)
