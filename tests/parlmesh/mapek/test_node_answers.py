"""Answers of a lying node, and how a loop handles them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.mapek.node_answers import Unusable, readings, standing, symptoms

GOOD = {"name": "cpu", "metric": "cpu", "value": 95.0, "limit": 80.0, "severity": "warning", "why": "high"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def test_a_value_that_is_not_a_number_is_missing():
    told = {"good": 1, "nan": float("nan"), "inf": float("-inf"), "text": "7", "yes": True, "none": None}
    metrics, missing = readings({"metrics": {**told, "whole": 10**400}, "missing": {"disk": "gone"}})
    assert metrics == {"good": 1.0}
    assert set(missing) == {"nan", "inf", "text", "yes", "none", "whole", "disk"}


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"metrics": [1]},
        {"metrics": {str(number): 1.0 for number in range(1001)}},
        {"metrics": {"x" * 301: 1.0}},
        {"metrics": {}, "missing": [1]},
        {"metrics": {}, "missing": {str(number): "" for number in range(1001)}},
    ],
)
def test_an_answer_that_says_nothing_is_unusable(answer):
    with pytest.raises(Unusable):
        readings(answer)


@pytest.mark.parametrize(
    "change",
    [
        {"value": "95"},
        {"value": float("nan")},
        {"limit": None},
        {"severity": "apocalyptic"},
        {"name": 7},
        {"name": "x" * 301},
        {"why": "x" * 501},
        {"flapping": "no"},
        {"command": "rm"},
    ],
)
def test_an_invalid_symptom_is_unusable(change):
    assert symptoms({"symptoms": [GOOD]})[0].value == 95.0
    with pytest.raises(Unusable):
        symptoms({"symptoms": [GOOD | change]})


def test_too_many_symptoms_are_unusable():
    with pytest.raises(Unusable):
        symptoms({"symptoms": [GOOD] * 101})


@given(st.dictionaries(st.sampled_from(["metrics", "missing", "symptoms", "standing", "action"]), JSON))
def test_only_unusable_is_ever_raised(answer):
    for read in (readings, symptoms):
        with suppress(Unusable):
            read(answer)
    assert set(standing(answer, ["a"])) <= {"a"}
