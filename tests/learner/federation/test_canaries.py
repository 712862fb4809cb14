"""Can one tell from what is published which of two updates a node had? No better than the reported ε allows.

The two are as far apart as clipping lets them be; the attacker knows all else, every other update and the direction.
"""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import beta, norm

from actor.handlers.federated import Masks, _noise_part, _whole_noise, noised
from learner.federation.model_versions import ModelFiles
from learner.federation.rules.counted_updates import close
from learner.federation.rules.records import Answer
from learner.federation.updates.update_aggregation import Aggregator, combination_for
from learner.federation.updates.update_spool import Spool
from parlmesh.federation.aggregators import joint_update
from parlmesh.federation.config import FederationConfig
from parlmesh.federation.privacy import clip, epsilon, mean_noise_deviation, noise_stream
from parlmesh.federation.schema import ModelSchema
from parlmesh.federation.secure.fixed_point import FixedPoint
from parlmesh.federation.update_blocks import MemoryUpdates

SIZE, NODES, DELTA = 8, 10, 1e-5
DIRECTION = np.eye(SIZE, dtype=np.float32)[0]
OTHERS = [np.random.default_rng(k).standard_normal(SIZE).astype(np.float32) for k in range(NODES - 1)]


def measured_epsilon(with_canary, without, confidence=0.999):
    """The largest ε that the attacker has shown, at any threshold, by the exact bounds of Clopper and Pearson."""
    trials, best = len(with_canary), 0.0
    for threshold in np.quantile(np.concatenate([with_canary, without]), np.linspace(0.02, 0.98, 49)):
        for first, second in (
            (with_canary > threshold, without > threshold),
            (without <= threshold, with_canary <= threshold),
        ):
            hits, false = int(first.sum()), int(second.sum())
            least = beta.ppf(1 - confidence, hits, trials - hits + 1) if hits else 0.0
            most = beta.ppf(confidence, false + 1, trials - false) if false < trials else 1.0
            if least > DELTA and most > 0.0:
                best = max(best, math.log(max(1.0, (least - DELTA) / most)))
    return best


def gaussian_audit(with_canary, without):
    """The ε of noise that is known to be Gaussian: from the distance of the scores in deviations, less five errors."""
    deviation = math.sqrt(0.5 * (with_canary.var() + without.var()))
    mu = (with_canary.mean() - without.mean()) / deviation - 5.0 * math.sqrt(2.0 / len(without))

    def more(value):
        return norm.cdf(mu / 2 - value / mu) - math.exp(value) * norm.cdf(-mu / 2 - value / mu) - DELTA

    return brentq(more, 0.0, 50.0)


def check(with_canary, without, noise, releases, *, in_parts=False):
    reported = epsilon(noise, releases, DELTA, in_parts=in_parts)
    assert measured_epsilon(with_canary, without) <= reported
    # Thresholds and so few trials would not notice a sensitivity of half the size; this does.
    assert gaussian_audit(with_canary, without) <= reported
    # The attack is the best there is: it must do as well as theory says, or the noise would not be what is accounted.
    mu = 2.0 * math.sqrt(releases) / noise
    expected = 0.5 * math.erfc(-mu / 2.0 / math.sqrt(2.0))
    middle = 0.5 * (np.median(with_canary) + np.median(without))
    right = 0.5 * ((with_canary > middle).mean() + (without <= middle).mean())
    assert right == pytest.approx(expected, abs=4.5 * math.sqrt(0.25 / (2 * len(without))))


def norm_of(vector):
    """As the learner takes it: infinite when a number is not finite."""
    return float(np.linalg.norm(vector)) if np.isfinite(vector).all() else math.inf


def answers_of(canary):
    vectors = {f"n{k}": vector for k, vector in enumerate([*OTHERS, canary])}
    return vectors, [
        Answer(node, 1, 1, node, 10, "", slot, norm_of(vector), True, "", {})
        for slot, (node, vector) in enumerate(vectors.items())
    ]


@pytest.mark.parametrize(("noise", "releases"), [(4.0, 1), (6.0, 5)])
def test_central_noise_hides_a_canary_as_well_as_is_reported(noise, releases):
    config = FederationConfig.model_validate({"privacy": {"mode": "central", "noise_multiplier": noise}})
    seeds = np.random.default_rng(5)

    def scores(sign):
        vectors, answers = answers_of(np.float32(1e3 * sign) * DIRECTION)
        updates = MemoryUpdates(vectors)
        counted = close(answers, config, 1).counted
        assert len(counted) == NODES
        mean = joint_update(updates, combination_for(config, updates, counted)) @ DIRECTION
        deviation = mean_noise_deviation(noise, 1.0, len(counted))
        drawn = [noise_stream(seeds.bytes(32)).standard_normal(releases).sum() for _ in range(2_000)]
        return releases * mean + deviation * np.array(drawn)

    check(scores(1.0), scores(-1.0), noise, releases)


def test_local_noise_hides_a_canary_as_well_as_is_reported():
    noise, releases = 3.0, 2

    def scores(sign):
        update = np.float32(1e3 * sign) * DIRECTION
        return np.array([sum(noised(update, 0.5, noise)[0] for _ in range(releases)) for _ in range(2_000)])

    check(scores(1.0), scores(-1.0), noise, releases)


def test_noise_in_parts_hides_a_canary_as_well_as_is_reported():
    """The least that may be unmasked is summed, and those not counted on have left their noise out."""
    noise, trials, threshold = 4.0, 50_000, 6
    masks = Masks(
        nodes=NODES, largest_value=1.0, largest_weight=1, clip_norm=1.0, noise_multiplier=noise, uncounted_nodes=2
    )
    numbers = FixedPoint(NODES, 1.0, 1, _noise_part(masks, threshold))
    room = numbers.room(1.0, SIZE)

    def scores(sign):
        # The attacker looks at one number of the mean; each trial draws the noise of that number anew.
        total = np.zeros(trials, np.uint32)
        for node, vector in enumerate([np.float32(1e3 * sign) * DIRECTION, *OTHERS[: threshold - 1]]):
            part = None if node in (1, 2) else _whole_noise(numbers, trials)
            total += numbers.words(np.full(trials, clip(vector, room) @ DIRECTION), 1, part)[1:]
        return threshold * numbers.mean(total, threshold)

    check(scores(1.0), scores(-1.0), noise, 1, in_parts=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_models_that_are_written_hide_a_canary_as_well_as_is_reported(tmp_path):
    noise = 4.0
    config = FederationConfig.model_validate({"privacy": {"mode": "central", "noise_multiplier": noise}})
    schema = ModelSchema.of({"weight": np.zeros(SIZE, np.float32)})
    models = ModelFiles(tmp_path / "models", schema, {})
    models.first({"weight": np.zeros(SIZE, np.float32)})
    spool = Spool(tmp_path / "updates.bin", SIZE)
    aggregator = Aggregator(config, models, spool, tmp_path)

    def scores(sign):
        vectors, answers = answers_of(np.float32(1e3 * sign) * DIRECTION)
        for answer in answers:
            spool.write(answer.slot, 0, vectors[answer.node_id].tobytes())
        counted = close(answers, config, 1).counted
        found = []
        for _ in range(1_000):
            aggregator.aggregate(1, 1, counted)
            reader = models.reader(2)
            found.append(float(reader.read(0, 1)[0]))
            reader.close()
            (tmp_path / "noise.key").unlink()
        return np.array(found)

    check(scores(1.0), scores(-1.0), noise, 1)


def test_with_central_privacy_no_node_decides_whether_others_count():
    config = FederationConfig.model_validate({"privacy": {"mode": "central"}})
    wanted = None
    for canary in (0.0, 1.0, 1e9, np.inf, np.nan):
        vectors, answers = answers_of(np.where(DIRECTION > 0, np.float32(canary), 0))
        counted = close(answers, config, 1).counted
        others = [(each.node_id, each.weight) for each in counted if each.node_id != f"n{NODES - 1}"]
        wanted = wanted or others
        assert others == wanted
        updates = MemoryUpdates(vectors)
        joint = joint_update(updates, combination_for(config, updates, counted))
        assert np.linalg.norm(joint) <= 1.0
