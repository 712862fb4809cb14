"""Fixtures shared by the tests of services in one process."""

import pytest


@pytest.fixture
def without_pictures(monkeypatch):
    """Draws no learning curves for runs that end in a test."""
    monkeypatch.setattr("learner.files.recorder.draw_learning_curve", lambda *arguments: None)
