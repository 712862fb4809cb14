"""Prometheus finds connected actors at the hosts they connected from, and no other host."""

import json

from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from scheduler.prometheus_targets import Targets
from scheduler.wire.messages import HIGHEST_PORT, hello_from_proto
from tests.scheduler.conftest import Harness


def found(harness: Harness) -> list[str]:
    groups = json.loads(Targets(lambda: harness.core.life.fleet).page().body)
    return [target for group in groups for target in group["targets"]]


def test_actors_that_are_connected_and_have_a_page_are_targets(harness: Harness) -> None:
    harness.connect("a", host="10.0.0.7", metrics_port=9103)
    harness.connect("b", host="fe80::1", metrics_port=9103)
    harness.connect("c", host="10.0.0.8")
    gone = harness.connect("d", host="10.0.0.9", metrics_port=9103)
    harness.disconnect(gone)
    assert found(harness) == ["10.0.0.7:9103", "[fe80::1]:9103"]


def test_an_impossible_port_is_not_a_target() -> None:
    hello = fleet_pb.Hello(actor_id="a", metrics_port=HIGHEST_PORT + 1)
    assert hello_from_proto(fleet_pb.ConnectRequest(hello=hello), 1).metrics_port == 0
