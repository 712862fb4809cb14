import json

from parlmesh.policies import PolicySpec
from parlmesh.types import ActionSpec

FIRST_RELEASE = {
    "action",
    "activation",
    "choice",
    "dueling",
    "hidden",
    "masked",
    "network",
    "normalised",
    "observation_shape",
    "observation_states",
}


def test_actors_of_the_first_release_read_a_policy_that_needs_nothing_newer():
    spec = PolicySpec((3,), ActionSpec("continuous", low=(-1.0,), high=(1.0,)))
    assert set(json.loads(spec.to_json())) == FIRST_RELEASE
    assert PolicySpec.from_json(spec.to_json()) == spec


def test_a_policy_that_needs_more_says_so():
    spec = PolicySpec((3,), ActionSpec("continuous", low=(-1.0,), high=(1.0,)), actions="clipped")
    assert json.loads(spec.to_json())["actions"] == "clipped"
    assert PolicySpec.from_json(spec.to_json()) == spec
