import json

import pytest

from learner.federation.rules import events
from learner.federation.rules.rounds import Rounds
from learner.federation.rules.snapshot import restore, state_of
from parlmesh.federation.config import EvaluationConfig, FederationConfig

from .test_rounds import answer_of


def same(core, other):
    def shown(each):
        found = {name: repr(value) for name, value in vars(each).items()}
        return {**found, "evaluation": repr((each.evaluation.waiting, each.evaluation.found))}

    return shown(core) == shown(other)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"buffer_size": 2},
        {"privacy": {"mode": "local", "epsilon_budget": 40.0}},
        {"selection": {"fraction": 0.5, "min_nodes": 4}},
    ],
)
def test_a_snapshot_restores_every_state_and_goes_on_alike(values):
    config = FederationConfig.model_validate(
        {"rounds": 3, "round_seconds": 10.0, "wait_seconds": 1e4, "evaluation": {"interval_rounds": 2}, **values}
    )
    cores = [Rounds(config)]

    def handle(event, now):
        found = [core.handle(event, now) for core in cores]
        assert all(each == found[0] for each in found)
        copy = Rounds(config)
        copy.handle(events.Restored(json.loads(json.dumps(state_of(cores[0])))), now)
        assert same(copy, cores[0])
        # All copies so far must keep doing the same.
        cores.append(copy)

    core, nodes = cores[0], ("a", "b", "c", "d")
    for number in range(1, 4):
        handle(events.Begin(nodes, f"e{number}", 5.0), 200.0 * number)
        handle(events.Refused("b", number, "NOT_FINITE", "no"), 200.0 * number)
        for assignment in list(core.assignments.values())[:3]:
            handle(events.Delivered(answer_of(core, assignment)), 200.0 * number + 1)
        for assignment in list(core.assignments.values()):
            handle(events.TaskFailed(assignment.node_id, number, "no", assignment.nonce), 200.0 * number + 2)
        handle(events.Tick(), 200.0 * number + 11)
        handle(events.Aggregated(core.version + 1, "ff", {"update/norm": 0.5}), 200.0 * number + 12)
        handle(events.Evaluated("a", 3, {"loss": 0.1}), 200.0 * number + 13)
        handle(events.Evaluated("c", 0, {}, "BAD_ANSWER: no"), 200.0 * number + 13)
        handle(events.Stop("enough") if number == 3 else events.Tick(), 200.0 * number + 14)
        handle(events.Tick(), 200.0 * number + 99)
    assert core.round == 3


def test_a_snapshot_forgets_old_nonces_but_none_that_is_waited_for():
    core = Rounds(FederationConfig(rounds=1_000, evaluation=EvaluationConfig(interval_rounds=0)))
    for number in range(1, 40):
        (ask,) = core.handle(events.Begin(tuple(f"n{k}" for k in range(100)), "e", 0.0), float(number))
        assert isinstance(ask, events.Ask)
        for assignment in ask.assignments:
            core.handle(events.Delivered(answer_of(core, assignment)), float(number))
        core.handle(events.Aggregated(number + 1, "ff"), float(number))
    copy = Rounds(core.config)
    restore(copy, state_of(core))
    assert len(copy.participants.nonces.asked) == 2_000
    first, second = (each.handle(events.Begin(("a", "b"), "e", 0.0), 99.0) for each in (core, copy))
    assert first == second
