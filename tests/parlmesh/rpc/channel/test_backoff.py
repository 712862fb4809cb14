import random

from hypothesis import given
from hypothesis import strategies as st

from parlmesh.rpc import Backoff


@given(
    first=st.floats(0.001, 10),
    factor=st.floats(1, 10),
    limit=st.floats(0.001, 100),
    seed=st.integers(0, 1000),
    count=st.integers(1, 300),
)
def test_a_wait_is_never_longer_than_its_ceiling(
    first: float, factor: float, limit: float, seed: int, count: int
) -> None:
    backoff = Backoff(first, factor, limit, random.Random(seed))
    for number in range(count):
        ceiling = min(limit, first * factor**number)
        assert 0 <= backoff.next() <= ceiling * (1 + 1e-9)


class _Highest(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return b


def test_the_ceiling_doubles_up_to_the_limit_and_starts_again_after_a_reset() -> None:
    backoff = Backoff(rng=_Highest())
    assert [backoff.next() for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    backoff.reset()
    assert backoff.next() == 0.1


def test_equal_seeds_wait_equally_and_others_do_not() -> None:
    def waits(seed: int) -> list[float]:
        backoff = Backoff(rng=random.Random(seed))
        return [backoff.next() for _ in range(5)]

    assert waits(1) == waits(1) != waits(2)
