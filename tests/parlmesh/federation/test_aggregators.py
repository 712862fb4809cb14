import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.errors import InvalidInput
from parlmesh.federation import aggregators, update_blocks
from parlmesh.federation.aggregators import joint_update
from parlmesh.federation.server_optimisers import fedadam, fedavg, fedavgm, fedyogi, nesterov, server_optimiser
from parlmesh.federation.update_blocks import MemoryUpdates
from parlmesh.federation.update_weights import counted_samples, middle, staleness_factors


def rows(seed, nodes, size=40, scale=1.0):
    rng = np.random.default_rng(seed)
    return {f"n{k:02d}": (scale * rng.standard_normal(size)).astype(np.float32) for k in range(nodes)}


def mean_of(by_node, weights):
    ordered = [weights[node] for node in sorted(by_node)]
    return joint_update(MemoryUpdates(by_node), aggregators.mean(ordered))


seeds = st.integers(0, 2**32 - 1)


@given(seeds)
def test_one_node_gives_its_own_update_bit_for_bit(seed):
    by_node = rows(seed, 1)
    base = rows(seed + 1, 1, scale=10.0)["n00"]
    joint = mean_of(by_node, {"n00": 37.0})
    assert np.array_equal(joint, by_node["n00"].astype(np.float64))
    applied = (base + fedavg().step(joint, {})).astype(np.float32)
    assert np.array_equal(applied, (base.astype(np.float64) + by_node["n00"]).astype(np.float32))


@given(seeds, st.integers(2, 9))
def test_equal_weights_give_the_arithmetic_mean(seed, nodes):
    by_node = rows(seed, nodes)
    joint = mean_of(by_node, dict.fromkeys(by_node, 5.0))
    np.testing.assert_allclose(joint, np.mean(list(by_node.values()), axis=0, dtype=np.float64), atol=1e-6)


@given(seeds, st.integers(1, 9))
def test_updates_are_weighted_by_samples(seed, nodes):
    by_node, rng = rows(seed, nodes), np.random.default_rng(seed)
    weights = {node: float(rng.integers(1, 1000)) for node in by_node}
    total = sum(weights.values())
    slow = sum(weights[node] / total * by_node[node].astype(np.float64) for node in by_node)
    np.testing.assert_allclose(mean_of(by_node, weights), slow, atol=1e-6)
    scaled = mean_of(by_node, {node: 3.0 * weight for node, weight in weights.items()})
    np.testing.assert_allclose(scaled, mean_of(by_node, weights), atol=1e-12)


def test_unchanged_updates_leave_the_model_bit_exact():
    base = rows(3, 1)["n00"]
    by_node = {node: np.zeros(40, np.float32) for node in ("a", "b", "c")}
    for step in (fedavg(), fedavgm(), nesterov(), fedadam(0.1), fedyogi(0.1)):
        moved = base + step.step(mean_of(by_node, {"a": 1.0, "b": 7.0, "c": 2.0}), step.initial(40))
        assert np.array_equal(moved.astype(np.float32), base)


def test_the_order_of_arrival_changes_no_bit():
    by_node = rows(4, 5, scale=1e3)
    weights = {node: float(index + 1) / 7 for index, node in enumerate(by_node)}
    wanted = mean_of(by_node, weights).tobytes()
    for order in itertools.permutations(by_node):
        assert mean_of({node: by_node[node] for node in order}, weights).tobytes() == wanted


@given(seeds, st.integers(1, 8))
def test_the_mean_lies_between_the_smallest_and_the_largest(seed, nodes):
    by_node = rows(seed, nodes)
    joint = mean_of(by_node, {node: float(index + 1) for index, node in enumerate(by_node)})
    stacked = np.stack(list(by_node.values()))
    assert (joint >= stacked.min(axis=0) - 1e-6).all()
    assert (joint <= stacked.max(axis=0) + 1e-6).all()


@given(seeds)
def test_the_mean_is_linear_and_half_nodes_count_half(seed):
    by_node = rows(seed, 4)
    weights = {"n00": 4.0, "n01": 2.0, "n02": 6.0, "n03": 1.0}
    doubled = mean_of({node: 2 * row for node, row in by_node.items()}, weights)
    np.testing.assert_allclose(doubled, 2 * mean_of(by_node, weights), atol=1e-12)
    split = {**by_node, "n00b": by_node["n00"]}
    halves = {**weights, "n00": 2.0, "n00b": 2.0}
    np.testing.assert_allclose(mean_of(split, halves), mean_of(by_node, weights), atol=1e-12)


@pytest.mark.parametrize("weights", [[1.0, 0.0], [1.0, -1.0], [1.0, np.nan], [1.0, np.inf], []])
def test_weights_that_cannot_divide_are_refused(weights):
    with pytest.raises(InvalidInput):
        aggregators.mean(weights)


def test_model_form_and_delta_form_agree():
    base = rows(5, 1)["n00"]
    models = {node: base + row for node, row in rows(6, 4).items()}
    deltas = {node: model - base for node, model in models.items()}
    weights = {node: float(index + 1) for index, node in enumerate(models)}
    by_models = mean_of(models, weights)
    by_deltas = base + fedavg(1.0).step(mean_of(deltas, weights), {})
    np.testing.assert_allclose(by_deltas, by_models, rtol=1e-6, atol=1e-6)


def test_a_server_rate_of_zero_changes_nothing():
    joint = mean_of(rows(7, 3), dict.fromkeys(rows(7, 3), 1.0))
    assert not fedavg(0.0).step(joint, {}).any()


def test_fedadam_without_memory_is_a_sign_like_step():
    joint = np.array([2.0, -0.5, 0.0])
    step = fedadam(0.1, beta1=0.0, beta2=0.0, tau=1e-3)
    np.testing.assert_allclose(step.step(joint, step.initial(3)), 0.1 * joint / (np.abs(joint) + 1e-3))


def test_adaptive_servers_follow_their_formulas_over_rounds():
    rng = np.random.default_rng(8)
    for name in ("fedadam", "fedyogi"):
        step = server_optimiser(name, learning_rate=0.1, momentum=0.9, beta2=0.99, tau=1e-3)
        moments, mean, square = step.initial(5), np.zeros(5), np.zeros(5)
        for _ in range(4):
            joint = rng.standard_normal(5)
            mean = 0.9 * mean + 0.1 * joint
            if name == "fedadam":
                square = 0.99 * square + 0.01 * joint**2
            else:
                square = square - 0.01 * joint**2 * np.sign(square - joint**2)
            np.testing.assert_allclose(step.step(joint, moments), 0.1 * mean / (np.sqrt(square) + 1e-3), rtol=1e-4)


def test_momentum_accumulates():
    step = fedavgm(1.0, momentum=0.5)
    moments = step.initial(1)
    moved = [float(step.step(np.array([1.0]), moments)[0]) for _ in range(3)]
    assert moved == [1.0, 1.5, 1.75]


@given(seeds, st.integers(1, 3))
def test_median_and_trimmed_mean_stay_in_the_honest_range(seed, liars):
    honest = rows(seed, 2 * liars + 1)
    lies = {f"z{k}": np.full(40, (-1.0) ** k * 1e30, np.float32) for k in range(liars)}
    both = MemoryUpdates({**honest, **lies})
    low, high = np.min(list(honest.values()), axis=0), np.max(list(honest.values()), axis=0)
    for rule in (aggregators.median(), aggregators.trimmed_mean(both.count, liars)):
        joint = joint_update(both, rule)
        assert (joint >= low).all()
        assert (joint <= high).all()


def test_trimming_nothing_is_the_mean_and_the_median_of_one_is_itself():
    by_node = rows(9, 5)
    everything = joint_update(MemoryUpdates(by_node), aggregators.trimmed_mean(5, 0))
    np.testing.assert_allclose(everything, mean_of(by_node, dict.fromkeys(by_node, 1.0)), atol=1e-7)
    alone = rows(10, 1)
    assert np.array_equal(joint_update(MemoryUpdates(alone), aggregators.median()), alone["n00"])


@given(seeds)
def test_krum_chooses_one_honest_update(seed):
    honest = rows(seed, 6, scale=0.1)
    liar = {"a-liar": np.full(40, 50.0, np.float32)}
    both = MemoryUpdates({**honest, **liar})
    joint = joint_update(both, aggregators.krum(both, 1))
    assert any(np.array_equal(joint, row.astype(np.float64)) for row in honest.values())
    several = joint_update(both, aggregators.krum(both, 1, chosen=6))
    np.testing.assert_allclose(several, np.mean(list(honest.values()), axis=0), atol=1e-6)


def test_krum_scores_equal_a_slow_reference():
    found = np.stack(list(rows(11, 7).values())).astype(np.float64)
    distances = update_blocks.squared_distances(update_blocks.gram(MemoryUpdates(rows(11, 7))))
    slow = [
        sum(sorted(float(np.sum((a - b) ** 2)) for j, b in enumerate(found) if j != i)[: 7 - 2 - 2])
        for i, a in enumerate(found)
    ]
    np.testing.assert_allclose(aggregators.krum_scores(distances, 2), slow, rtol=1e-9)


@pytest.mark.parametrize(("count", "liars"), [(4, 1), (6, 2), (2, 0), (5, -1)])
def test_krum_is_refused_below_two_f_plus_three(count, liars):
    with pytest.raises(InvalidInput, match="Krum"):
        aggregators.krum(MemoryUpdates(rows(0, count)), liars)


def test_too_much_trimming_and_too_many_chosen_are_refused():
    with pytest.raises(InvalidInput, match="cannot drop 2 on each side; it needs at least 5"):
        aggregators.trimmed_mean(4, 2)
    with pytest.raises(InvalidInput, match="can choose 1 to 4, got 5"):
        aggregators.krum(MemoryUpdates(rows(0, 5)), 1, chosen=5)


def test_the_geometric_median_minimises_the_sum_of_distances():
    by_node = rows(12, 5, size=3)
    points = np.stack([by_node[node] for node in sorted(by_node)]).astype(np.float64)
    found = joint_update(MemoryUpdates(by_node), aggregators.geometric_median(MemoryUpdates(by_node), [1, 1, 1, 1, 1]))

    def cost(point):
        return np.linalg.norm(points - point, axis=1).sum()

    rng = np.random.default_rng(0)
    assert all(cost(found) <= cost(found + 1e-3 * rng.standard_normal(3)) + 1e-9 for _ in range(50))
    lied = {**by_node, "z0": np.full(3, 1e6, np.float32), "z1": np.full(3, -1e6, np.float32)}
    rule = aggregators.geometric_median(MemoryUpdates(lied), [1.0] * 7)
    assert np.linalg.norm(joint_update(MemoryUpdates(lied), rule) - points.mean(axis=0)) < 3.0


def test_clipping_bounds_what_one_node_can_add():
    by_node = rows(13, 3) | {"z": np.full(40, 1e6, np.float32)}
    norms = [float(np.linalg.norm(by_node[node])) for node in sorted(by_node)]
    joint = joint_update(MemoryUpdates(by_node), aggregators.clipped_mean([1.0] * 4, norms, 2.0))
    assert np.linalg.norm(joint) <= 2.0 + 1e-6
    assert aggregators.clip_factors([1.0, 4.0], 2.0).tolist() == [1.0, 0.5]


def test_rules_do_not_depend_on_the_width_of_blocks(monkeypatch):
    by_node = rows(14, 5, size=5000)
    many = MemoryUpdates(by_node)

    def all_rules():
        norms = np.sqrt(np.diag(update_blocks.gram(many))).tolist()
        found = [
            aggregators.mean([1, 2, 3, 4, 5]),
            aggregators.clipped_mean([1] * 5, norms),
            aggregators.median(),
            aggregators.trimmed_mean(5, 1),
            aggregators.krum(many, 1),
            aggregators.geometric_median(many, [1] * 5),
        ]
        return [joint_update(many, rule) for rule in found]

    wide = all_rules()
    monkeypatch.setattr(update_blocks, "_LARGEST_BLOCK", 1 << 10)
    for one, other in zip(wide, all_rules(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)


@settings(max_examples=30)
@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=9))
def test_no_node_weighs_more_than_the_cap(claimed):
    counted = counted_samples(claimed, max_samples=10_000, cap_factor=3.0)
    median = middle(np.minimum(claimed, 10_000).tolist())
    assert (counted <= np.minimum(claimed, 10_000)).all()
    assert (counted <= max(1.0, 3.0 * median)).all()
    assert counted_samples(claimed).tolist() == [float(number) for number in claimed]


def test_old_updates_count_less():
    assert staleness_factors([0, 3]).tolist() == [1.0, 0.5]


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=12), st.floats(0.0, 1e30))
def test_one_liar_cannot_lift_the_middle_above_all_others(honest, lie):
    assert middle([*honest, lie]) <= max(honest)


@pytest.mark.parametrize("liars", [1, 4])
@pytest.mark.parametrize("far", [1e3, 1e9, 1e18, 1e37])
def test_less_than_half_cannot_break_the_geometric_median(liars, far):
    honest = {node: 1.0 + 0.1 * vector for node, vector in rows(21, 10 - liars, size=30).items()}
    points = np.stack(list(honest.values())).astype(np.float64)
    spread = np.linalg.norm(points - points.mean(axis=0), axis=1).max()
    lied = {**honest, **{f"z{k}": np.full(30, -far, np.float32) for k in range(liars)}}
    found = joint_update(MemoryUpdates(lied), aggregators.geometric_median(MemoryUpdates(lied), [1.0] * 10))
    # (Lopuhaä and Rousseeuw 1991): within 2 (n − f) / (n − 2 f) times the spread.
    assert np.linalg.norm(found - points.mean(axis=0)) <= 2 * (10 - liars) / (10 - 2 * liars) * spread


def test_the_geometric_median_of_points_that_mostly_coincide_is_that_point():
    same = {f"n{k}": np.full(5, 2.0, np.float32) for k in range(3)}
    lied = {**same, "z0": np.full(5, 1e30, np.float32), "z1": np.zeros(5, np.float32)}
    found = joint_update(MemoryUpdates(lied), aggregators.geometric_median(MemoryUpdates(lied), [1.0] * 5))
    assert found.tolist() == [2.0] * 5


def test_the_outer_step_of_diloco_is_torchs_nesterov_on_the_negative_difference():
    rng = np.random.default_rng(0)
    weights = torch.nn.Parameter(torch.zeros(8, dtype=torch.float64))
    theirs = torch.optim.SGD([weights], lr=0.7, momentum=0.9, nesterov=True)
    step = server_optimiser("nesterov", learning_rate=0.7, momentum=0.9, beta2=0.99, tau=1e-3)
    moments, ours = step.initial(8), np.zeros(8)
    for _ in range(5):
        joint = rng.standard_normal(8)
        weights.grad = torch.from_numpy(-joint)
        theirs.step()
        ours += step.step(joint, moments)
    assert np.allclose(ours, weights.detach().numpy(), atol=1e-5)
