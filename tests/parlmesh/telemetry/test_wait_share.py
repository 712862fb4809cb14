import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.telemetry import Waiting


def test_nothing_waited_before_the_first_span():
    assert Waiting().ratio() == 0.0


def test_the_ratio_is_waited_over_all():
    waiting = Waiting()
    waiting.add(1.0, 0.3, 0.7)
    assert waiting.add(2.0, 0.1, 0.9) == pytest.approx(0.2)


def test_spans_older_than_the_window_are_forgotten():
    waiting = Waiting()
    waiting.add(0.0, 1.0, 0.0)
    assert waiting.add(10.0, 0.0, 1.0) == 0.0


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e3), st.floats(0, 1e3)), min_size=1, max_size=20))
def test_the_ratio_lies_between_0_and_1(spans):
    waiting = Waiting()
    for now, waited, worked in sorted(spans):
        assert 0.0 <= waiting.add(now, waited, worked) <= 1.0
