"""Baselines on the same packets."""

import pytest

from parlmesh.errors import InvalidInput
from parlmesh.worlds.routing.baselines import BASELINES
from parlmesh.worlds.routing.evaluation import evaluate_baseline

MESHES = {"networks": 4, "scenarios": 8}


def judged(**settings):
    return {name: evaluate_baseline(name, {**MESHES, **settings}, 300, seed=1) for name in BASELINES}


def test_without_load_and_failures_nothing_beats_the_shortest_path():
    found = judged(load=0.0, link_failures=0.0)
    best = found["shortest-etx"]
    assert best.stretch == pytest.approx(1.0)
    assert found["recomputed-etx"] == best
    assert all(one.etx >= best.etx - 1e-9 for name, one in found.items() if name not in ("random", "ecmp"))
    assert found["random"].delivered < best.delivered


def test_with_failing_links_recomputed_paths_deliver_more_than_static_ones():
    found = judged(load=0.0, link_failures=0.03)
    assert found["recomputed-etx"].delivered > found["shortest-etx"].delivered + 0.05


def test_under_load_paths_that_know_it_deliver_more():
    found = judged(load=0.9, link_failures=0.0)
    assert found["load-aware-etx"].delivered > found["recomputed-etx"].delivered + 0.05
    assert found["load-aware-etx"].stretch > 1.0


def test_an_unknown_baseline_is_refused_by_name():
    with pytest.raises(InvalidInput, match="shortest-etx"):
        evaluate_baseline("lucky", {}, 1, seed=0)
