import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.errors import InvalidInput
from parlmesh.federation.compression import ErrorFeedback, check_size, decode, encode

sizes = st.integers(1, 9000)


@given(sizes, st.integers(0, 2**32 - 1))
def test_eight_bits_err_by_at_most_half_a_step(size, seed):
    vector = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    found = decode(encode(vector, "int8"), size, "int8")
    for start in range(0, size, 4096):
        part = slice(start, start + 4096)
        step = np.abs(vector[part]).max() / 127
        assert np.abs(found[part] - vector[part]).max() <= step / 2 * 1.001 + 1e-12


@given(sizes, st.floats(0.001, 1.0))
def test_top_k_sends_the_largest_and_nothing_else(size, ratio):
    vector = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    data = encode(vector, "top_k", ratio)
    found = decode(data, size, "top_k")
    kept = np.flatnonzero(found)
    assert len(data) == 8 * max(1, int(np.ceil(ratio * size)))
    assert np.array_equal(found[kept], vector[kept])
    left = np.setdiff1d(np.arange(size), kept)
    assert not len(left) or np.abs(vector[left]).max() <= np.abs(vector[kept]).min()


@pytest.mark.parametrize("encoding", ["int8", "top_k"])
def test_what_was_sent_and_what_is_left_sum_to_what_was_given(encoding):
    rng, feedback = np.random.default_rng(1), ErrorFeedback(5000)
    given_total, sent_total = np.zeros(5000), np.zeros(5000)
    for _ in range(10):
        delta = rng.standard_normal(5000).astype(np.float32)
        given_total += delta
        sent_total += decode(feedback.encode(delta, encoding, 0.05), 5000, encoding)
        feedback.settle(taken=True)
        # A refused update, and one whose fate is unknown, leave nothing behind.
        feedback.encode(delta + 1.0, encoding, 0.05)
        feedback.settle(taken=False)
        feedback.encode(delta - 1.0, encoding, 0.05)
    np.testing.assert_allclose(sent_total + feedback.residual, given_total, atol=1e-4)


def test_no_compression_is_exact():
    vector = np.random.default_rng(2).standard_normal(77).astype(np.float32)
    assert np.array_equal(decode(encode(vector, "none"), 77, "none"), vector)


@pytest.mark.parametrize(
    ("size_bytes", "encoding"),
    [(396, "none"), (404, "none"), (103, "int8"), (808, "top_k"), (4, "top_k"), (400, "zip")],
)
def test_bytes_of_another_vector_are_refused(size_bytes, encoding):
    with pytest.raises(InvalidInput):
        check_size(size_bytes, 100, encoding)


def test_indices_outside_the_vector_are_refused():
    for chosen in ([3, 100], [5, 5], [6, 2]):
        data = np.array(chosen, "<u4").tobytes() + np.ones(2, "<f4").tobytes()
        with pytest.raises(InvalidInput, match="indices"):
            decode(data, 100, "top_k")
