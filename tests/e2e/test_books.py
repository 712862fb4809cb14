"""The books of a real fleet balance at every scrape, through kills and restarts."""

import threading

import pytest

from parlmesh.testing import free_port, wait_until
from parlmesh.testing.scraping import scraped

pytestmark = pytest.mark.e2e

PATIENCE = 60.0
SETTINGS = {
    "training.num_envs": 4,
    "training.trajectory_steps": 8,
    "training.hidden": "[8]",
    "training.batch_trajectories": 3,
    "training.goal_return": "null",
    "training.step_budget": 10**9,
    "training.evaluation_interval_steps": 2_000,
    "training.evaluation_episodes": 2,
}
TRAJECTORIES = "parlmesh_learner_trajectories"


class Books:
    """Scrapes as fast as it can, and keeps what did not balance."""

    def __init__(self, port):
        self._port = port
        self.scrapes = 0
        self.trained = self.waiting = self.dropped = 0.0
        self.wrong = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._scrape)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(60)

    def _scrape(self):
        while not self._over.is_set():
            try:
                found = scraped(self._port)
            except OSError:
                continue  # between two lives
            received, trained = (found.get(f"{TRAJECTORIES}_{name}_total", 0) for name in ("received", "trained"))
            queued = found.get(f"{TRAJECTORIES}_queued", 0)
            dropped = sum(value for name, value in found.items() if name.startswith(f"{TRAJECTORIES}_dropped_total{{"))
            self.scrapes += 1
            self.trained, self.dropped = trained, dropped
            self.waiting = max(self.waiting, queued)
            if received != trained + queued + dropped:
                self.wrong.append((received, trained, queued, dropped))


def test_received_is_trained_queued_and_dropped_at_every_scrape(fleet):
    port = free_port()
    settings = {**SETTINGS, "metrics.port": port}
    fleet.scheduler()
    learner, actor = fleet.learner(**settings), fleet.actor()
    with Books(port) as books:
        wait_until(lambda: books.trained > 30, PATIENCE)
        actor.kill()
        fleet.actor(incarnation=2)
        seen = books.trained
        wait_until(lambda: books.trained > seen + 30, PATIENCE)
        learner.kill()
        fleet.learner(**settings)
        wait_until(lambda: 30 < books.trained < 10_000, PATIENCE)
    assert books.wrong == []
    assert books.scrapes > 20
    assert books.waiting > 0, "some were seen on their way"
