import contextlib
import http.client
import re
import socket
import subprocess
import sys
import threading

import pytest
from prometheus_client import REGISTRY, Counter

from parlmesh.config import MetricsConfig
from parlmesh.errors import ConfigError, Unavailable
from parlmesh.telemetry.metrics_page import MOST_CONNECTIONS, serve_metrics


def page(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def test_no_port_means_no_page() -> None:
    assert serve_metrics(MetricsConfig()) is None


def test_the_page_shows_what_was_counted() -> None:
    counter = Counter("parlmesh_test_things_total", "Things.", registry=None)
    REGISTRY.register(counter)
    server = serve_metrics(MetricsConfig(port=0))
    assert server is not None
    try:
        counter.inc(3)
        assert re.search(r"^parlmesh_test_things_total 3\.0$", page(server.port), re.MULTILINE)
    finally:
        server.close()
        REGISTRY.unregister(counter)


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1:{port} for metrics: address already in use"):
            serve_metrics(MetricsConfig(port=port))


def test_closing_frees_the_port() -> None:
    first = serve_metrics(MetricsConfig(port=0))
    assert first is not None
    page(first.port)
    first.close()
    second = serve_metrics(MetricsConfig(port=first.port))
    assert second is not None
    second.close()


def test_the_page_does_not_keep_the_process_alive() -> None:
    code = (
        "from parlmesh.config import MetricsConfig\n"
        "from parlmesh.telemetry.metrics_page import serve_metrics\n"
        "assert serve_metrics(MetricsConfig(port=0)).port > 0"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def test_a_page_beyond_this_machine_must_be_asked_for() -> None:
    with pytest.raises(
        ConfigError, match=r"metrics\.host 0\.0\.0\.0 is open to other machines.*metrics\.insecure: true"
    ):
        serve_metrics(MetricsConfig(host="0.0.0.0", port=0))
    told = serve_metrics(MetricsConfig(host="0.0.0.0", port=0, insecure=True))
    assert told is not None
    try:
        assert "python_info" in page(told.port)
    finally:
        told.close()


def test_a_thousand_idle_connections_cost_a_few_threads_and_keep_nobody_out() -> None:
    before = threading.active_count()
    server = serve_metrics(MetricsConfig(port=0))
    assert server is not None
    with contextlib.ExitStack() as idle:
        for number in range(1000):
            idle.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
            if number % 250 == 249:
                assert "python_info" in page(server.port)
        assert before < threading.active_count() <= before + MOST_CONNECTIONS + 10
    server.close()
