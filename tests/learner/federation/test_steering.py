"""How far one liar can move a round at the defaults, through closing and joining as a federation has them.

What is promised: with honest updates of norm at most h and equal samples, the joint update is within
w (2 h + |m|) of the mean m of the honest ones, where w = 2 / (n + 1) is all that one voter can weigh.
"""

import numpy as np
import pytest

from learner.federation.rules.counted_updates import close
from learner.federation.rules.nodes.voters import votes_of
from learner.federation.rules.records import Answer
from learner.federation.updates.update_aggregation import combination_for
from parlmesh.federation.aggregators import joint_update
from parlmesh.federation.config import FederationConfig
from parlmesh.federation.update_blocks import MemoryUpdates, Updates

SIZE = 12


def joined(sent, config=None, version=1):
    """`sent`: (node, vector, samples), a node as often as it likes."""
    config = config or FederationConfig()
    answers, vectors = [], {}
    for index, (node, vector, samples) in enumerate(sent):
        vector = np.asarray(vector, np.float32)
        norm = float(np.linalg.norm(vector.astype(np.float64)))
        answers.append(Answer(node, 1, version, f"{index:04d}", samples, "", index, norm, True, "", {}))
        vectors[index] = vector
    counted = close(answers, config, version).counted
    updates: Updates = MemoryUpdates({f"{row:04d}": vectors[each.slot] for row, each in enumerate(counted)})
    if config.rule.by_votes:
        updates = votes_of(updates, counted)
    return joint_update(updates, combination_for(config, updates, counted))


def honest_updates(rng, count):
    direction = rng.standard_normal(SIZE)
    return [(f"n{k}", direction + 0.3 * rng.standard_normal(SIZE), 10) for k in range(count)]


def lies(rng, honest):
    mean = np.mean([vector for _, vector, _ in honest], axis=0)
    longest = max(np.linalg.norm(vector) for _, vector, _ in honest)
    away = -mean / np.linalg.norm(mean)
    aside = rng.standard_normal(SIZE)
    for direction in (away, -away, aside / np.linalg.norm(aside)):
        for length in (0.0, 0.5, 1.0, 2.0, 3.0, 4.9, 5.1, 10.0, 1e6, 1e30):
            for samples in (1, 10, 10**12):
                yield [("liar", length * longest * direction, samples)]
    yield [(f"liar#{k}", 1e6 * away, 10**12) for k in range(50)]
    yield [(f"liar#{k}", 2.0 * longest * away, 10) for k in range(50)]
    yield [("liar", 2.0 * longest * away, 10)] * 50


@pytest.mark.parametrize("nodes", [2, 3, 7, 10])
def test_one_liar_moves_the_mean_no_further_than_is_promised(nodes):
    share = 2.0 / (nodes + 1.0)
    worst = 0.0
    for seed in range(5):
        rng = np.random.default_rng([seed, nodes])
        honest = honest_updates(rng, nodes - 1)
        mean = np.mean([vector for _, vector, _ in honest], axis=0)
        longest = max(np.linalg.norm(vector) for _, vector, _ in honest)
        bound = share * (2.0 * longest + np.linalg.norm(mean))
        for lie in lies(rng, honest):
            moved = np.linalg.norm(joined([*honest, *lie]) - mean)
            assert moved <= bound * (1.0 + 1e-6), (seed, lie[0])
            worst = max(worst, moved / bound)
    # The promise is not empty: somebody gets near to it.
    assert worst > 0.8


@pytest.mark.parametrize(("nodes", "least", "most"), [(2, -1.0, 1.0), (3, 0.0, 1.0), (7, 0.5, 1.0), (10, 0.6, 1.0)])
def test_the_reviewed_attacks_stay_in_the_honest_range(nodes, least, most):
    """Honest nodes step by +1; the liar flips the sign, multiplies by a million, claims 10^12 samples or 50 nodes."""
    honest = [(f"n{k}", np.ones(SIZE), 10) for k in range(nodes - 1)]
    for lie in (
        [("liar", -np.ones(SIZE), 10)],
        [("liar", -1e6 * np.ones(SIZE), 10)],
        [("liar", -np.ones(SIZE), 10**12)],
        [(f"liar#{k}", -np.ones(SIZE), 10) for k in range(50)],
    ):
        found = joined([*honest, *lie])
        assert least - 1e-6 <= found.min(), lie[0]
        assert found.max() <= most + 1e-6
    assert joined([*honest, ("liar", 1e6 * np.ones(SIZE), 10**12)]).max() <= (5 / 3 if nodes == 2 else 1.0) + 1e-6


@pytest.mark.parametrize("rule", ["median", "krum", "geometric_median", "trimmed_mean"])
def test_a_host_with_fifty_virtual_nodes_has_one_vote(rule):
    selection: dict[str, object] = {"min_nodes": 5, "virtual_nodes": 50}
    values = {"rule": {"name": rule}, "quorum": 5, "selection": selection}
    rng = np.random.default_rng(3)
    honest = honest_updates(rng, 6)
    stacked = np.stack([vector for _, vector, _ in honest])
    lie = [(f"liar#{k}", -vector, 10) for k, (_, vector, _) in zip(range(50), honest * 9, strict=False)]
    found = joined([*honest, *lie], FederationConfig.model_validate(values))
    assert (found >= stacked.min(axis=0) - 1e-6).all()
    assert (found <= stacked.max(axis=0) + 1e-6).all()
    # Vouched for, all as in a simulation or this one by name, they are fifty.
    for vouched in (True, ["liar"]):
        selection["virtual_voters"] = vouched
        assert joined([*honest, *lie], FederationConfig.model_validate(values)) @ stacked.mean(axis=0) < 0.0
    selection["virtual_voters"] = ["another"]
    np.testing.assert_array_equal(joined([*honest, *lie], FederationConfig.model_validate(values)), found)


def test_all_honest_is_the_mean_by_samples():
    rng = np.random.default_rng(7)
    for nodes in (1, 2, 3, 7, 10):
        sent = [(f"n{k}", rng.standard_normal(SIZE), 10 + k) for k in range(nodes)]
        total = sum(samples for _, _, samples in sent)
        wanted = sum(samples / total * vector for _, vector, samples in sent)
        np.testing.assert_allclose(joined(sent), wanted, atol=1e-6)
    # Virtual nodes of one host among as many of another: each counts by its samples.
    both = [(f"{host}#{k}", rng.standard_normal(SIZE), 10) for host in ("a", "b") for k in range(8)]
    np.testing.assert_allclose(joined(both), np.mean([vector for _, vector, _ in both], axis=0), atol=1e-6)
