"""A trained planner: what it learns, what it may choose, and which files are refused."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.mapek.planning.action_choice import choose
from parlmesh.mapek.planning.trained_planner import LARGEST_BYTES, ActionModel, Policy, trained
from parlmesh.mapek.types import Candidate, Decision, Status, Symptom


def tried(number: int, action: str, worked: bool, io: float, status: Status | None = None) -> Decision:
    decision = Decision(
        str(number),
        1,
        "n",
        Symptom("cpu", "cpu", 95.0, 80.0, "warning", "high"),
        action,
        "mend",
        "cpu",
        "site=edge",
        inputs={"metrics": {"cpu": 95.0, "io_wait": io}},
        status=status or (Status.WORKED if worked else Status.ROLLED_BACK),
        seconds=10.0,
    )
    return decision


@pytest.fixture(scope="module")
def policy() -> Policy:
    """Restarting helps when the disks wait, scaling when they do not."""
    return trained(
        [
            tried(number, action, worked=(action == "restart") == (io > 50), io=io)
            for number in range(40)
            for action in ("restart", "scale")
            for io in [90.0 if number % 2 else 10.0]
        ]
    )


def chosen(policy: Policy, io: float, names: tuple[str, ...], failures: int = 0) -> str:
    rule = policy.rules["cpu"]
    symptom = Symptom("cpu", "cpu", 95.0, 80.0, "warning", "high")
    features = rule.features(symptom, "site=edge", {"cpu": 95.0, "io_wait": io})
    candidates = [Candidate(name, failures=failures if name == "restart" else 0) for name in names]
    return choose("policy", candidates, "0", rule.actions, features).action


def test_it_chooses_by_what_is_seen_on_the_node(policy: Policy) -> None:
    assert chosen(policy, 90.0, ("scale", "restart")) == "restart"
    assert chosen(policy, 10.0, ("restart", "scale")) == "scale"


def test_an_action_that_failed_on_the_node_is_tried_less(policy: Policy) -> None:
    assert chosen(policy, 90.0, ("scale", "restart"), failures=8) == "scale"


def test_the_best_learnt_action_is_not_taken_where_the_rule_forbids_it(policy: Policy) -> None:
    assert chosen(policy, 90.0, ("scale", "never-seen")) in ("scale", "never-seen")
    assert chosen(policy, 90.0, ("scale",)) == "scale"


@given(
    weights=st.lists(st.floats(-1e12, 1e12), min_size=2, max_size=2),
    features=st.lists(st.floats(-3, 3), min_size=2, max_size=2),
    names=st.lists(st.sampled_from("abcd"), min_size=1, unique=True),
)
def test_whatever_its_weights_are_it_names_a_candidate(weights, features, names) -> None:
    models = {name: ActionModel(weights=tuple(weights), seconds=1.0, tries=1) for name in "abx"}
    assert choose("policy", [Candidate(name) for name in names], "0", models, features).action in names


def test_a_file_says_the_same_as_what_was_written(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path / "planner.json")
    assert Policy.load(tmp_path / "planner.json") == policy
    assert Policy.load(tmp_path / "planner.json").digest == policy.digest
    assert list(tmp_path.iterdir()) == [tmp_path / "planner.json"]


def _changed(policy: Policy, **changes: object) -> str:
    return json.dumps(policy.model_dump(mode="json") | changes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda policy: "\x80\x04pickle", "is not a policy"),
        (lambda policy: "[" * 100_000, "is not a policy"),
        (lambda policy: _changed(policy, version=2), "version"),
        (lambda policy: _changed(policy, rules={"cpu": {"contexts": [], "metrics": {}, "actions": {
            "restart": {"weights": [float("nan")] * 3, "seconds": 1, "tries": 1}}}}), "is not a policy"),
        (lambda policy: _changed(policy, rules={"cpu": {"contexts": [], "metrics": {}, "actions": {
            "restart": {"weights": [0.0], "seconds": 1, "tries": 1}}}}), "1 weights for 3 features"),
        (lambda policy: _changed(policy, code="import os"), "code"),
        (lambda policy: " " * (LARGEST_BYTES + 1), "larger than"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_a_policy_gives_one_sentence(policy: Policy, tmp_path: Path, change, said: str) -> None:
    (tmp_path / "planner.json").write_text(change(policy))
    with pytest.raises(InvalidInput) as caught:
        Policy.load(tmp_path / "planner.json")
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    with pytest.raises(InvalidInput, match="cannot be read"):
        Policy.load(tmp_path / "nowhere.json")


def test_without_an_action_that_ended_there_is_nothing_to_learn() -> None:
    with pytest.raises(FailedPrecondition, match="nothing to learn"):
        trained([tried(1, "restart", False, 1.0, Status.DRY_RUN), tried(2, "restart", False, 1.0, Status.UNKNOWN)])
