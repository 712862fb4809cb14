"""Round trips to a real port, and a real metric page."""

import asyncio
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from parlmesh.errors import InvalidInput
from parlmesh.mapek.node.probes import pages, round_trips
from parlmesh.mapek.node.sensors import Sensors


async def test_a_port_that_answers_has_a_round_trip_and_one_that_does_not_is_lost_and_missing():
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = closed.getsockname()[1]
        metrics, missing = await round_trips({"up": f"127.0.0.1:{port}", "down": f"127.0.0.1:{dead}"})
    server.close()
    assert metrics["rtt_ms.up"] > 0
    assert (metrics["loss_percent.up"], metrics["loss_percent.down"]) == (0.0, 100.0)
    assert list(missing) == ["rtt_ms.down"]


@pytest.mark.parametrize("target", ["nowhere", "host:0", "ping://-f", "host:port"])
async def test_an_invalid_neighbour_is_refused(target):
    with pytest.raises(InvalidInput):
        await round_trips({"x": target})


async def test_samples_of_a_metric_page_are_metrics_and_a_page_that_fails_is_missing():
    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'# TYPE errors counter\nerrors_total{code="500"} 7\nother 1\n')

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.handle_request, daemon=True).start()
    metrics, missing = await pages(
        {"api": f"http://127.0.0.1:{server.server_port}/metrics", "gone": "http://127.0.0.1:1/metrics"}, ["errors*"]
    )
    server.server_close()
    assert metrics == {'api:errors_total{code="500"}': 7.0}
    assert list(missing) == ["gone:"]


def test_the_node_itself_is_read():
    sensors = Sensors()
    assert sensors.first()
    metrics, missing = sensors.read(("/", "/no/such/folder"), ("no-such-process",))
    assert 0 <= metrics["cpu_percent"] <= 100
    assert 0 < metrics["memory_percent"] < 100
    assert metrics["disk_percent"] > 0
    assert metrics["service.no-such-process"] == 0
    assert list(missing) == ["disk_percent /no/such/folder"]
