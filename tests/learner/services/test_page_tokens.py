import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.services.page_tokens import page
from parlmesh.errors import InvalidInput
from parlmesh.v1.training_service_pb2 import Training

keys = st.tuples(st.floats(0, 1e10), st.integers(0, 5), st.text(max_size=5))


def training(key):
    return Training(run_id=key[2], reason="x" * 100)


def pages(items, size):
    token, found = "", []
    while True:
        some, token = page(items, lambda key: key, lambda key: training(key), size=size, token=token)
        found.append(some)
        if not token:
            return found


@given(st.lists(keys, unique=True, max_size=40), st.integers(1, 7))
def test_pages_hold_everything_once_and_in_order(items, size):
    found = pages(items, size)
    assert [each.run_id for some in found for each in some] == [key[2] for key in sorted(items, reverse=True)]
    assert all(len(some) <= size for some in found)


def test_what_comes_and_goes_between_two_pages_moves_nothing_else():
    items = [(float(number), 0, str(number)) for number in range(10)]
    first, token = page(items, lambda key: key, training, size=4, token="")
    items = [(99.0, 0, "new"), *items[:3], *items[4:]]
    second, _ = page(items, lambda key: key, training, size=4, token=token)
    assert [each.run_id for each in (*first, *second)] == ["9", "8", "7", "6", "5", "4", "2", "1"]


def test_an_answer_stays_below_the_message_limit():
    items = [(float(number), 0, str(number)) for number in range(100)]
    found, token = page(items, lambda key: key, lambda key: Training(reason="x" * 100_000), size=0, token="")
    assert 10 < len(found) < 40
    assert token
    assert sum(each.ByteSize() for each in found) < 4 << 20


@pytest.mark.parametrize("token", ["²", "x", "5" * 5_000, "W10=", "bnVsbA==", "WyJhIiwgMSwgIngiXQ=="])
def test_a_token_that_was_not_given_out_is_refused(token):
    with pytest.raises(InvalidInput, match="is not from an earlier answer"):
        page([], lambda key: key, training, size=0, token=token)


def test_a_size_beyond_the_limit_is_refused():
    with pytest.raises(InvalidInput, match="page_size is 1001; it must be 0 to 1000"):
        page([], lambda key: key, training, size=1_001, token="")
