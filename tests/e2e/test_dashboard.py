"""The page that `parlmesh up` starts: it follows a training and a killed actor, and is gone with the fleet."""

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from parlmesh.testing import wait_until
from tests.e2e.test_up import ENDLESS, LOOK, PATIENCE, Up

# Slow: one more fleet for what the integration tests see over fakes.
pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_the_page_of_a_fleet_follows_its_training_and_a_killed_actor(tmp_path: Path) -> None:
    with Up(tmp_path, *ENDLESS, "--dashboard", "--actors", "2") as up:
        link: Any = wait_until(lambda: re.search(r"open (http://\S+) to see it", up.output()), PATIENCE)
        url = link[1]

        def exported(what: str) -> list[dict[str, Any]]:
            with urllib.request.urlopen(f"{url}export?what={what}&format=json", timeout=20) as answer:
                found: list[dict[str, Any]] = json.load(answer)
            return found

        def shown(page: str) -> str:
            with urllib.request.urlopen(url + page, timeout=20) as answer:
                return str(answer.read().decode())

        before = up.trains_past(2_000)
        assert exported("runs")[0]["steps"] >= before.steps
        wait_until(lambda: "<canvas" not in shown("run?id=one") and "data-chart" in shown("run?id=one"), PATIENCE)
        wait_until(lambda: [each["state"] for each in exported("actors")] == ["ready", "ready"], PATIENCE)
        victim = up.child("actor-1")
        victim.kill()
        up.child("actor-1", other_than=victim.pid)
        wait_until(
            lambda: any(each["actor_id"] == "actor-1" and each["state"] == "ready" for each in exported("actors")),
            PATIENCE,
            poll_seconds=LOOK,
        )
        assert "connected" in shown("logs?process=actor-1")
        page = up.child("dashboard")
        up.process.terminate()
        up.process.wait(PATIENCE)
        assert not page.is_running() or page.status() == psutil.STATUS_ZOMBIE
        with pytest.raises(urllib.error.URLError):
            shown("")
