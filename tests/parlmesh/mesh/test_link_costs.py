"""Costs of links."""

import math

import pytest

from parlmesh.errors import InvalidInput
from parlmesh.mesh.link_costs import UNIT, Metric, chosen_metric, costs, etx_of
from parlmesh.mesh.measured_mesh import Edge, mesh_of


def cost(metric, directed=False, **facts):
    mesh = mesh_of("pair", "ab", [Edge("a", "b", facts, directed)])
    return costs(mesh, Metric(metric))[0]


def test_costs_equal_hand_computed_ones():
    assert cost("hops") == UNIT
    assert cost("cost", cost=2.5) == 2_500_000
    assert cost("etx", loss=0.5) == 4 * UNIT
    assert cost("etx", tq=127.5) == 2 * UNIT
    assert cost("ett", loss=0.0, rate_mbps=12.0) == UNIT
    assert cost("latency", latency_ms=3.25) == 3_250_000
    assert cost("loss", loss=0.5) == round(math.log(2) * UNIT)
    assert cost("tq", tq=255) == round(-math.log(225 / 255) * UNIT)
    assert etx_of(0.5, 0.0) == 2.0


def test_a_link_that_loses_everything_is_unusable():
    for metric, facts in (("etx", {"loss": 1.0}), ("loss", {"loss": 1.0}), ("tq", {"tq": 0}), ("etx", {"etx": 0.0})):
        assert cost(metric, **facts) is None


def test_etx_takes_the_loss_of_both_directions():
    edges = [Edge("a", "b", {"loss": 0.5}, directed=True), Edge("b", "a", {"loss": 0.2}, directed=True)]
    mesh = mesh_of("pair", "ab", edges)
    assert mesh.cables == 1
    assert costs(mesh, Metric.ETX) == [2_500_000, 2_500_000]


@pytest.mark.parametrize(
    ("metric", "facts", "said"),
    [
        ("etx", {"etx": 0.5}, "an ETX must be 1 or more, got 0.5"),
        ("etx", {"loss": 1.5}, "a loss must be 0 to 1"),
        ("tq", {"tq": 300}, "a TQ must be 0 to 255"),
        ("latency", {"latency_ms": -1.0}, "a – b has the latency -1.0; it must be 0 or more"),
        ("latency", {}, "a – b has no latency"),
        ("cost", {"cost": 1e9}, "above 100000"),
        ("cost", {"cost": 1e308}, "above 100000"),
        ("cost", {"cost": math.nan}, "it must be 0 or more"),
    ],
)
def test_impossible_measurements_are_refused_by_name(metric, facts, said):
    with pytest.raises(InvalidInput, match=said):
        cost(metric, **facts)


def test_an_unknown_metric_is_refused_with_those_there_are():
    with pytest.raises(InvalidInput, match=r"metric must be one of auto, hops, .* got 'rssi'"):
        Metric("rssi")


def test_auto_takes_what_every_link_has():
    def chosen(*facts):
        return chosen_metric(mesh_of("m", "ab", [Edge("a", "b", each) for each in facts]), Metric.AUTO)

    assert chosen({"cost": 1.0, "loss": 0.1}) is Metric.COST
    assert chosen({"cost": 1.0}, {"loss": 0.1}) is Metric.HOPS
    assert chosen({"loss": 0.1}, {"tq": 200}) is Metric.ETX
    assert chosen() is Metric.HOPS


def test_unmeasured_links_cost_the_travel_time_of_light():
    mesh = mesh_of("far", "ab", [Edge("a", "b", {})], {"a": (0.0, 0.0), "b": (0.0, 9.0)}, geographic=True)
    assert costs(mesh, Metric.LATENCY)[0] == pytest.approx(5.1 * UNIT, rel=0.01)
