"""Failures in the log: at once, and not again and again."""

from typing import Any

import pytest

from actor.session.failure_log import FailureLog
from parlmesh.testing import HandClock
from parlmesh.v1.fleet_service_pb2 import Lease
from parlmesh.v1.task_pb2 import Failure

LEASE = Lease(task_id="t", lease_id=1, attempt=2)


def fields(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record)["parlmesh_fields"] for record in caplog.records if record.message == "task_failed"]


def test_the_first_of_a_kind_is_written_whole_and_the_next_as_a_number(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    log = FailureLog("a", clock)
    failure = Failure(reason="HANDLER_ERROR", message="KeyError: 'x'\n  File one\n  File two")
    for _ in range(50):
        log.add("mine", LEASE, failure)
    log.add("yours", LEASE, failure)
    written = fields(caplog)
    assert [(each["kind"], each["left_out"]) for each in written] == [("mine", 0), ("yours", 0)]
    assert written[0]["message"] == "KeyError: 'x'"
    assert written[0]["frames"] == ["  File one", "  File two"]
    assert (written[0]["task_id"], written[0]["attempt"]) == ("t", 2)
    clock.advance(10.0)
    log.add("mine", LEASE, failure)
    assert fields(caplog)[-1]["left_out"] == 49
