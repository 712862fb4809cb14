"""What the tests of services in one process share."""

import pytest


@pytest.fixture
def without_pictures(monkeypatch):
    """Nobody looks at the learning curves of runs that a test lets end."""
    monkeypatch.setattr("learner.files.recorder.draw_learning_curve", lambda *arguments: None)
