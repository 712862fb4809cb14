"""A relay among real processes: it is killed and stopped while a run trains, and comes back."""

import os
import signal
import urllib.request

import pytest

from parlmesh.testing import free_port, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WAIT = 60.0
ENDLESS = {"training.step_budget": 10**9, "training.goal_return": "null", "training.num_envs": 8}


def value(port, name):
    """A number from a metrics page; 0 if it is missing."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_a_relay_that_goes_away_costs_seconds_but_not_the_run(fleet, fault):
    ports = [free_port(), free_port()]
    fleet.scheduler()
    fleet.learner(**ENDLESS)
    relay = fleet.relay(**{"metrics.port": ports[0]})
    limits = {"limits.relay_seconds": 1.0, "limits.relay_retry_seconds": 0.5}
    actor = fleet.actor(relay=fleet.relay_address, **{"metrics.port": ports[1]}, **limits)

    def version():
        return value(ports[1], "parlmesh_actor_policy_version")

    def relayed():
        return value(ports[1], 'parlmesh_actor_relay_fetches_total{result="fetched"}')

    wait_until(lambda: relayed() > 3, WAIT)
    if fault == "killed":
        relay.kill()
    else:
        os.kill(relay.pid, signal.SIGSTOP)
    actor.wait_for("relay_left", WAIT)
    before = version()
    wait_until(lambda: version() > before + 3, WAIT)
    if fault == "killed":
        fleet.relay(**{"metrics.port": ports[0]})
    else:
        os.kill(relay.pid, signal.SIGCONT)
    actor.wait_for("relay_taken", WAIT)
    handed_on = relayed()
    wait_until(lambda: relayed() > handed_on + 3, WAIT)
    assert value(ports[0], 'parlmesh_relay_requests_total{result="failed"}') == 0
