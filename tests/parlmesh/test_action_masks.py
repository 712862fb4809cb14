"""Wide masks travel as bits and come back; drawing from the allowed ones alone is the same distribution."""

import numpy as np

from parlmesh.action_masks import pack_mask, packed_width, unpack_mask
from parlmesh.policies.distributions import MASKED, Categorical, sample_allowed


def test_masks_come_back_and_narrow_ones_stay_as_they_are():
    rng = np.random.default_rng(0)
    for choices in (9, 255, 256, 11_259):
        mask = rng.random((3, 2, choices)) < 0.1
        packed = pack_mask(mask)
        assert packed.shape[-1] == (packed_width(choices) or choices)
        np.testing.assert_array_equal(unpack_mask(packed, choices), mask)


def test_what_is_drawn_is_allowed_and_as_likely_as_over_all_choices():
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(4, 300)).astype(np.float32)
    mask = rng.random((4, 300)) < 0.02
    mask[:, 7] = True
    drawn = np.zeros((4, 300))
    for _ in range(4_000):
        action, log_prob = sample_allowed(outputs, mask, rng)
        drawn[np.arange(4), action] += 1 / 4_000
    likelihood = Categorical().likelihood(np.where(mask, outputs, MASKED), action)
    np.testing.assert_allclose(log_prob, likelihood.log_prob, rtol=1e-4)
    assert not drawn[~mask].any()
    expected = np.where(mask, np.exp(outputs), 0.0)
    np.testing.assert_allclose(drawn, expected / expected.sum(axis=1, keepdims=True), atol=0.04)
