"""Planners choose among what is allowed, and prefer what worked."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.errors import InvalidInput
from parlmesh.mapek.planning.action_choice import choose
from parlmesh.mapek.types import Candidate

_CANDIDATES = st.lists(
    st.builds(
        lambda name, tries, share, seconds: Candidate(name, float(tries), tries * share, seconds),
        st.text(min_size=1, max_size=5),
        st.integers(0, 1000),
        st.floats(0, 1),
        st.floats(0, 1e4),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda each: each.action,
)


@settings(max_examples=40)
@given(_CANDIDATES, st.sampled_from(["rules", "learned"]), st.text(max_size=10))
def test_a_planner_never_chooses_what_is_not_among_the_candidates(candidates, planner, seed):
    choice = choose(planner, candidates, seed)
    assert choice.action in {each.action for each in candidates}
    assert choose(planner, candidates, seed) == choice


def test_without_candidates_there_is_no_plan():
    with pytest.raises(InvalidInput, match="at least one candidate"):
        choose("rules", [], "")


def test_rules_take_their_first_choice_unless_it_fails_more_than_it_works():
    assert choose("rules", [Candidate("a"), Candidate("b")], "").action == "a"
    assert choose("rules", [Candidate("a", 3, 1, 5.0), Candidate("b")], "").action == "b"


def test_the_learned_planner_mostly_takes_what_worked():
    candidates = [Candidate("bad", 20, 2, 10.0), Candidate("good", 20, 18, 10.0)]
    taken = [choose("learned", candidates, str(seed)).action for seed in range(100)]
    assert taken.count("good") > 95
