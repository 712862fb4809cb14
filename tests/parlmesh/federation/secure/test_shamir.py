"""Any `threshold` shares give the secret back, and fewer do not."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.errors import InvalidInput
from parlmesh.federation.secure.shamir import join, split


@given(st.binary(min_size=32, max_size=32), st.integers(1, 12), st.integers(0, 8), st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None)
def test_any_threshold_of_shares_give_the_secret_back(
    secret: bytes, threshold: int, more: int, rng: random.Random
) -> None:
    shares = split(secret, threshold, threshold + more, rng.randbytes)
    chosen = rng.sample(range(1, len(shares) + 1), threshold)
    assert join({place: shares[place - 1] for place in chosen}, threshold) == secret


def test_one_share_less_is_refused() -> None:
    rng = random.Random(1)
    shares = split(bytes(range(32)), 3, 5, rng.randbytes)
    with pytest.raises(InvalidInput, match="needs 3 shares, got 2"):
        join({1: shares[0], 2: shares[1]}, 3)
