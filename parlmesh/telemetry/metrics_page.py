"""Serves a process's pages for Prometheus and probes from daemon threads on a separate port. Declares no metric."""

import contextlib
import socket
from collections import OrderedDict
from collections.abc import Callable, Mapping
from socketserver import ThreadingMixIn
from threading import Lock, Thread
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from parlmesh.addresses import is_loopback, join_address
from parlmesh.config import MetricsConfig
from parlmesh.errors import ConfigError, Unavailable

from .logging import get_logger

log = get_logger("parlmesh.telemetry")

# Up to this many processes on one host find a metrics port on their own.
_PORTS_TRIED = 100

MOST_CONNECTIONS = 32
SILENCE_SECONDS = 10.0
METRICS_PATH = "/metrics"
HEALTH_PATH = "/health"


class Page(NamedTuple):
    """The response for one path."""

    status: str
    kind: str
    body: bytes


Pages = Mapping[str, Callable[[], Page]]


def health_page(serving: Callable[[], bool]) -> Callable[[], Page]:
    """The state from grpc.health.v1 as 200 or 503, for probes that cannot use gRPC with TLS."""

    def page() -> Page:
        good = serving()
        return Page(
            "200 OK" if good else "503 Service Unavailable", "text/plain", b"serving" if good else b"not serving"
        )

    return page


class MetricsServer:
    """A metrics page being served; `close` frees the port."""

    def __init__(self, server: WSGIServer, thread: Thread) -> None:
        self._server = server
        self._thread = thread
        self._address: Any = server.server_address[:2]
        self.port: int = server.server_port

    def close(self) -> None:
        stopping = Thread(target=self._server.shutdown)
        stopping.start()
        # The server checks for shutdown twice a second, or on a connection.
        with contextlib.suppress(OSError), socket.create_connection(self._address, timeout=1.0):
            pass
        stopping.join()
        self._server.server_close()
        self._thread.join(timeout=5.0)


def serve_metrics(config: MetricsConfig, pages: Pages | None = None) -> MetricsServer | None:
    """Starts the metrics page with other pages beside it; does nothing when the port is null."""
    if config.port is None:
        return None
    if not (config.insecure or is_loopback(config.host)):
        raise ConfigError(
            f"the metrics page has no security, and metrics.host {config.host} is open to other machines: "
            "listen on 127.0.0.1, or set metrics.insecure: true",
            reason="SECURITY",
        )
    from prometheus_client import make_wsgi_app

    try:
        family, _, _, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        kind = type("_Page", (_Page,), {"address_family": family})
        server: WSGIServer = kind(address[:2], _Request)
    except OSError as error:
        where = join_address(config.host, config.port)
        raise Unavailable(
            f"cannot listen on {where} for metrics: {(error.strerror or str(error)).lower()}",
            reason="CANNOT_LISTEN",
            address=where,
        ) from error
    server.set_app(_beside(make_wsgi_app(), pages or {}))
    thread = Thread(target=server.serve_forever, name="metrics page", daemon=True)
    thread.start()
    return MetricsServer(server, thread)


def serve_metrics_nearby(config: MetricsConfig, pages: Pages, first: int) -> MetricsServer | None:
    """Like `serve_metrics`, but processes on one host take the next free port from `first`, unless one is set."""
    last = first + _PORTS_TRIED if config.port == first else config.port
    while True:
        try:
            return serve_metrics(config, pages)
        except Unavailable:
            if config.port is None or config.port == last:
                raise
            log.warning("metrics_port_taken", port=config.port, next_port=config.port + 1)
            config = config.model_copy(update={"port": config.port + 1})


def _beside(metrics: Callable[..., Any], pages: Pages) -> Callable[..., Any]:
    """Serves each page under its path, and the metrics under every other path."""

    def app(environment: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        page = pages.get(environment.get("PATH_INFO", ""))
        if page is None:
            return metrics(environment, start_response)
        status, kind, body = page()
        start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [body]

    return app


class _Request(WSGIRequestHandler):
    timeout = SILENCE_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Does nothing: a scrape is not worth a log line."""


class _Page(ThreadingMixIn, WSGIServer):
    """One thread per connection, both bounded: when there are too many, the oldest connection is closed."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: Any, handler: type[WSGIRequestHandler]) -> None:
        self._open: OrderedDict[socket.socket, None] = OrderedDict()
        self._lock = Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = None
            oldest = self._open.popitem(last=False)[0] if len(self._open) > MOST_CONNECTIONS else None
        if oldest is not None:
            # Its thread notices and closes the connection.
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Does nothing: a broken connection is the client's concern."""
