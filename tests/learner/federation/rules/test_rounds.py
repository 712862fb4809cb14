import pytest

from learner.federation.rules import events
from learner.federation.rules.nodes.selection import select
from learner.federation.rules.phase import Phase
from learner.federation.rules.records import Answer, FederationState, Offer, RoundState
from learner.federation.rules.rounds import Rounds
from parlmesh.errors import AlreadyExists, FailedPrecondition, InvalidInput
from parlmesh.federation.config import FederationConfig, SelectionConfig
from parlmesh.federation.privacy import epsilon, releases_within

NODES = ("a", "b", "c", "d", "e")


def config(**values):
    values.setdefault("selection", {"min_nodes": 1})
    values.setdefault("evaluation", {"interval_rounds": 0})
    return FederationConfig.model_validate({"rounds": 3, "round_seconds": 10.0, **values})


def begun(nodes=NODES, **values):
    core = Rounds(config(**values))
    core.resume(0.0)
    asked, *_ = core.handle(events.Begin(tuple(nodes), "entropy", 1e9), 1.0)
    assert isinstance(asked, events.Ask | events.Prepare)
    return core, {each.node_id: each for each in asked.assignments}


def offer_of(assignment, digest="d", samples=10):
    return Offer(
        assignment.node_id, assignment.round, assignment.base_version, assignment.nonce, samples, digest or "d"
    )


def answer_of(core, assignment, *, norm=1.0, samples=10, digest="d", finite=True):
    offer = offer_of(assignment, digest, samples)
    return Answer.of(
        offer, slot=len(core.used_slots()), norm=norm, finite=finite, stored_digest=digest, metrics={"loss": norm}
    )


def deliver(core, assignment, now=2.0, **values):
    return core.handle(events.Delivered(answer_of(core, assignment, **values)), now)


def refusals(core, index=-1):
    return {update.node_id: update.refusal for update in core.history[index].updates}


def test_a_round_closes_when_all_have_answered_and_the_next_version_follows():
    core, asked = begun()
    for node in "edcb":
        assert deliver(core, asked[node]) == []
    (aggregate,) = deliver(core, asked["a"])
    assert [counted.node_id for counted in aggregate.counted] == list(NODES)
    assert sum(counted.weight for counted in aggregate.counted) == pytest.approx(1.0)
    assert core.phase is Phase.AGGREGATING
    assert core.handle(events.Aggregated(2, "ff"), 3.0) == [events.SeekNodes()]
    assert (core.version, core.digest, core.aggregated) == (2, "ff", 1)
    assert core.history[-1].state is RoundState.AGGREGATED
    assert core.history[-1].metrics["fit/loss"] == pytest.approx(1.0)
    assert core.history[-1].seconds == pytest.approx(2.0)


def test_a_timer_closes_the_round_with_a_quorum_and_names_the_silent():
    core, asked = begun(quorum=2, selection={"min_nodes": 2})
    deliver(core, asked["a"])
    deliver(core, asked["b"])
    assert core.handle(events.Tick(), 10.9) == []
    withdraw, aggregate = core.handle(events.Tick(), 11.0)
    assert withdraw == events.Withdraw(("c", "d", "e"))
    assert [counted.node_id for counted in aggregate.counted] == ["a", "b"]
    assert refusals(core) == {"a": "", "b": "", "c": "NO_ANSWER", "d": "NO_ANSWER", "e": "NO_ANSWER"}


def test_below_the_quorum_the_round_is_abandoned_and_after_some_the_federation_fails():
    core, asked = begun(quorum=2, selection={"min_nodes": 2}, max_abandoned=2)
    deliver(core, asked["a"])
    assert core.handle(events.Tick(), 11.0)[-1] == events.SeekNodes()
    assert core.history[-1].state is RoundState.ABANDONED
    assert core.version == 1
    core.handle(events.Begin(NODES, "more", 0.0), 12.0)
    assert core.round == 2
    end = core.handle(events.Tick(), 22.0)[-1]
    assert end.state is FederationState.FAILED
    assert end.reason == "2 rounds in a row had fewer than 2 updates, the last 0 (left out: 5 NO_ANSWER)"


def test_a_failed_task_does_not_keep_the_round_open():
    core, asked = begun(nodes=("a", "b"))
    deliver(core, asked["a"])
    (aggregate,) = core.handle(events.TaskFailed("b", 1, "HANDLER_ERROR: no data"), 2.0)
    assert [counted.node_id for counted in aggregate.counted] == ["a"]
    assert refusals(core)["b"] == "TASK_FAILED"


def test_the_same_update_again_counts_once_and_another_is_refused():
    core, asked = begun()
    deliver(core, asked["a"], digest="one")
    assert core.check(offer_of(asked["a"], "one")) is not None
    assert deliver(core, asked["a"], digest="one") == []
    with pytest.raises(AlreadyExists) as caught:
        core.check(offer_of(asked["a"], "other"))
    assert caught.value.reason == "ANSWERED_TWICE"
    assert len(core.answers) == 1


def test_late_replayed_and_unasked_updates_are_told_apart():
    core, asked = begun(nodes=("a", "b"), quorum=1)
    deliver(core, asked["a"])
    core.handle(events.Tick(), 11.0)
    core.handle(events.Aggregated(2, "ff"), 12.0)
    (ask,) = core.handle(events.Begin(("a", "b"), "more", 0.0), 13.0)
    second = {each.node_id: each for each in ask.assignments}

    def reason(offer):
        with pytest.raises(FailedPrecondition) as caught:
            core.check(offer)
        return caught.value.reason

    assert reason(offer_of(asked["b"])) == "LATE"
    assert reason(offer_of(asked["a"])) == "REPLAYED"
    old_nonce = Offer("a", 2, 2, asked["a"].nonce, 10, "d")
    assert reason(old_nonce) == "WRONG_NONCE"
    assert reason(Offer("z", 2, 2, second["a"].nonce, 10, "d")) == "NOT_ASKED"
    assert reason(Offer("a", 7, 2, "00", 10, "d")) == "WRONG_ROUND"
    assert reason(Offer("a", 2, 1, second["a"].nonce, 10, "d")) == "WRONG_BASE"
    core.handle(events.Refused("b", 1, "LATE", "too late"), 14.0)
    assert [(u.node_id, u.refusal) for u in core.history[0].updates][-1] == ("b", "LATE")


def test_values_that_are_not_finite_or_too_long_leave_everything_as_it_was():
    core, asked = begun(gate={"max_norm": 5.0})
    deliver(core, asked["a"])
    before = repr((core.answers, core.history, core.phase, core.used_slots()))
    for values in ({"finite": False}, {"norm": 6.0}, {"norm": float("inf")}):
        with pytest.raises(InvalidInput):
            deliver(core, asked["b"], **values)
        assert repr((core.answers, core.history, core.phase, core.used_slots())) == before


def test_outliers_are_left_out_when_the_round_closes():
    core, asked = begun()
    for node in "abcd":
        deliver(core, asked[node])
    (aggregate,) = deliver(core, asked["e"], norm=100.0)
    assert [counted.node_id for counted in aggregate.counted] == list("abcd")
    assert refusals(core)["e"] == "OUTLIER"


def test_a_claim_of_many_samples_is_capped_and_named():
    core, asked = begun(nodes=("a", "b", "c"), gate={"weight_cap_factor": 2.0})
    deliver(core, asked["a"])
    deliver(core, asked["b"])
    (aggregate,) = deliver(core, asked["c"], samples=10**12)
    assert [counted.weight for counted in aggregate.counted] == pytest.approx([0.25, 0.25, 0.5])
    liar = core.history[-1].updates[-1]
    assert (liar.node_id, liar.samples, liar.counted_samples, liar.notes) == ("c", 10**12, 20, ["SAMPLES_CAPPED"])


def test_over_selection_closes_with_the_wanted_number():
    core, asked = begun(selection={"min_nodes": 5, "fraction": 0.4, "over_selection": 1.5})
    assert len(asked) == 3
    first, second, third = asked.values()
    deliver(core, first)
    withdraw, aggregate = deliver(core, second)
    assert withdraw == events.Withdraw((third.node_id,))
    assert len(aggregate.counted) == 2


def test_selection_is_random_over_rounds_and_the_same_for_the_same_round():
    rule = SelectionConfig(fraction=0.3)
    nodes = [f"n{k}" for k in range(20)]
    chosen = [select(nodes, rule, 1, number) for number in range(30)]
    assert all(len(asked) == wanted == 6 for asked, wanted in chosen)
    assert len({asked for asked, _ in chosen}) > 20
    assert select(list(reversed(nodes)), rule, 1, 3) == chosen[3]
    assert select(nodes, SelectionConfig(), 1, 1) == (tuple(sorted(nodes)), 20)


def test_evaluations_are_averaged_by_samples_and_time_ends_them():
    core, asked = begun(nodes=("a", "b", "c"), evaluation={"interval_rounds": 1, "seconds": 5.0})
    for node in "abc":
        deliver(core, asked[node])
    (ask,) = core.handle(events.Aggregated(2, "ff"), 3.0)
    assert ask == events.AskEvaluation(2, ("a", "b", "c"))
    core.handle(events.Evaluated("a", 10, {"accuracy": 0.5}), 3.5)
    core.handle(events.Evaluated("b", 30, {"accuracy": 0.9}), 3.6)
    assert core.handle(events.Tick(), 8.1) == [events.SeekNodes()]
    assert core.history[-1].metrics["evaluation/accuracy"] == pytest.approx(0.8)
    assert core.history[-1].metrics["evaluation/nodes"] == 2.0


def test_it_ends_after_its_rounds_or_after_the_round_in_hand_when_stopped():
    core, asked = begun(nodes=("a",), rounds=1)
    deliver(core, asked["a"])
    (end,) = core.handle(events.Aggregated(2, "ff"), 3.0)
    assert end.state is FederationState.FINISHED
    core, asked = begun(nodes=("a",))
    assert core.handle(events.Stop("enough"), 2.0) == []
    deliver(core, asked["a"])
    (end,) = core.handle(events.Aggregated(2, "ff"), 3.0)
    assert (end.state, end.reason) == (FederationState.STOPPED, "enough")
    assert core.handle(events.Tick(), 99.0) == []


def test_too_few_nodes_for_too_long_end_it():
    core = Rounds(config(wait_seconds=5.0))
    assert core.resume(0.0) == [events.SeekNodes()]
    (end,) = core.handle(events.Tick(), 5.0)
    assert isinstance(end, events.End)
    assert end.state is FederationState.FAILED


def test_a_buffer_makes_a_version_of_every_few_updates_and_discounts_old_ones():
    core, asked = begun(nodes=("a", "b", "c"), buffer_size=2, quorum=1)
    (again,) = deliver(core, asked["a"])
    assert [each.node_id for each in again.assignments] == ["a"]
    assert again.assignments[0].nonce != asked["a"].nonce
    (aggregate,) = deliver(core, asked["b"])
    assert [counted.node_id for counted in aggregate.counted] == ["a", "b"]
    # Whoever answers while the model is being made is not lost.
    assert deliver(core, asked["c"], now=2.5) == []
    core.handle(events.Aggregated(2, "ff"), 3.0)
    actions = core.handle(events.Begin(("a", "b", "c"), "more", 0.0), 4.0)
    assert sorted(each.node_id for each in actions[0].assignments) == ["b", "c"]
    (aggregate,) = deliver(core, again.assignments[0], now=5.0)
    assert [counted.node_id for counted in aggregate.counted] == ["a", "c"]
    core.handle(events.Aggregated(3, "ff"), 6.0)
    (ask,) = core.handle(events.Begin(("a", "b", "c"), "more", 0.0), 7.0)
    fresh = {each.node_id: each for each in ask.assignments}
    deliver(core, fresh["a"], now=8.0)
    (aggregate,) = deliver(core, actions[0].assignments[0], now=9.0)
    assert [c.weight for c in aggregate.counted] == pytest.approx([1 / (1 + 2**-0.5), 2**-0.5 / (1 + 2**-0.5)])


def test_a_buffer_refuses_what_is_too_old():
    core, asked = begun(nodes=("a", "b"), buffer_size=1, quorum=1, max_staleness=0)
    deliver(core, asked["a"])
    core.handle(events.Aggregated(2, "ff"), 3.0)
    core.handle(events.Begin(("a", "b"), "more", 0.0), 4.0)
    with pytest.raises(FailedPrecondition, match="1 versions old"):
        deliver(core, asked["b"], now=5.0)


def test_replaying_the_events_gives_the_same_state_at_every_point():
    log = []
    core = Rounds(config(rounds=2))

    def handle(event, now):
        actions = core.handle(event, now)
        log.append((event, now))
        copy = Rounds(core.config)
        for past, then in log:
            copy.handle(past, then)
        assert {name: repr(value) for name, value in vars(copy).items()} == {
            name: repr(value) for name, value in vars(core).items()
        }
        return actions

    for number in (1, 2):
        (ask,) = handle(events.Begin(("a", "b", "c"), f"e{number}", 5.0), 10.0 * number)
        handle(events.Delivered(answer_of(core, ask.assignments[0])), 10.0 * number + 1)
        handle(events.Refused("b", number, "NOT_FINITE", "no"), 10.0 * number + 1)
        handle(events.TaskFailed("b", number, "no"), 10.0 * number + 2)
        handle(events.Tick(), 10.0 * number + 11)
        handle(events.Aggregated(number + 1, "ff"), 10.0 * number + 12)
    assert core.state is FederationState.FINISHED


@pytest.mark.parametrize("phase", [Phase.AGGREGATING, Phase.EVALUATING, Phase.WAITING])
def test_a_buffer_asks_a_node_again_whose_task_failed_in_any_phase(phase):
    core, asked = begun(nodes=("a", "b"), buffer_size=1, quorum=1, evaluation={"interval_rounds": 1})
    deliver(core, asked["a"])
    if phase is not Phase.AGGREGATING:
        core.handle(events.Aggregated(2, "ff"), 3.0)
    if phase is Phase.WAITING:
        core.handle(events.Tick(), 99.0)
    assert core.phase is phase
    core.handle(events.TaskFailed("b", 1, "HANDLER_ERROR: no data", asked["b"].nonce), 99.0)
    if phase is Phase.AGGREGATING:
        core.handle(events.Aggregated(2, "ff"), 99.0)
    if core.phase is Phase.EVALUATING:
        core.handle(events.Tick(), 199.0)
    (ask,) = core.handle(events.Begin(("a", "b"), "more", 0.0), 200.0)
    assert sorted(each.node_id for each in ask.assignments) == ["a", "b"]


def test_a_failure_of_an_earlier_task_does_not_take_the_next_one_with_it():
    core, asked = begun(nodes=("a", "b"), buffer_size=5, quorum=1)
    (again,) = deliver(core, asked["a"])
    core.handle(events.TaskFailed("a", 1, "late", asked["a"].nonce), 3.0)
    assert core.assignments["a"] == again.assignments[0]


def test_a_buffer_that_is_resumed_asks_its_nodes_again_in_any_phase():
    core, asked = begun(nodes=("a", "b"), buffer_size=1, quorum=1, evaluation={"interval_rounds": 1})
    deliver(core, asked["a"])
    for event in (None, events.Aggregated(2, "ff"), events.Tick()):
        if event is not None:
            core.handle(event, 99.0)
        assert events.Ask((asked["b"],)) in core.resume(99.0)


def strike_out(core, asked, node, times):
    for _ in range(times):
        core.handle(events.Refused(node, core.round, "NOT_FINITE", "a number is not finite"), 2.0)


def test_a_node_that_answers_badly_again_and_again_is_left_out_and_comes_back():
    core, asked = begun(gate={"max_strikes": 3}, rounds=100)
    strike_out(core, asked, "a", 3)
    for number in range(2, 30):
        core.handle(events.TaskFailed("a", core.round, "refused"), 2.0)
        for node in core.busy_nodes():
            deliver(core, core.assignments[node])
        core.handle(events.Aggregated(number, "ff"), 3.0)
        (ask,) = core.handle(events.Begin(NODES, "more", 0.0), 4.0)
        present = "a" in {each.node_id for each in ask.assignments}
        assert present == (core.round >= 22), core.round
        if not present:
            (out,) = [update for update in core.history[-1].updates if update.node_id == "a"]
            assert out.refusal == "LEFT_OUT"
            assert "3 bad answers in a row, the last NOT_FINITE" in out.message


def test_a_good_answer_forgives_and_nobody_is_left_out_who_is_needed():
    core, asked = begun(gate={"max_strikes": 3})
    strike_out(core, asked, "a", 2)
    deliver(core, asked["a"])
    strike_out(core, asked, "a", 2)
    assert core.eligibility.able(NODES, core.round + 1) == NODES
    strike_out(core, asked, "a", 1)
    assert core.eligibility.able(NODES, core.round + 1) == ("b", "c", "d", "e")
    strike_out(core, asked, "stranger", 99)
    # Late or cut off is not bad.
    for _ in range(9):
        core.handle(events.Refused("b", 1, "LATE", "too late"), 2.0)
    assert core.eligibility.able(("a", "b"), core.round + 1) == ("b",)
    few, asked = begun(selection={"min_nodes": 5}, gate={"max_strikes": 1})
    strike_out(few, asked, "a", 5)
    assert few.eligibility.able(NODES, few.round + 1) == NODES


def test_a_bad_evaluation_counts_against_its_node_and_not_in_the_mean():
    core, asked = begun(nodes=("a", "b"), evaluation={"interval_rounds": 1}, gate={"max_strikes": 1})
    for node in "ab":
        deliver(core, asked[node])
    core.handle(events.Aggregated(2, "ff"), 3.0)
    core.handle(events.Evaluated("a", 0, {}, "BAD_ANSWER: samples must be a number"), 3.5)
    assert core.handle(events.Evaluated("b", 30, {"accuracy": 0.9}), 3.6) == [events.SeekNodes()]
    assert core.history[-1].metrics["evaluation/accuracy"] == pytest.approx(0.9)
    assert core.eligibility.able(("a", "b"), core.round + 1) == ("b",)
    assert refusals(core)["a"] == "BAD_ANSWER"


def test_what_is_listed_of_refusals_is_bounded():
    core, _ = begun()
    for number in range(3_000):
        core.handle(events.Refused("a", 1, "NOT_FINITE", "x" * 5_000), 2.0)
        core.handle(events.Refused(f"stranger{number}", 1, "NOT_ASKED", "x"), 2.0)
    record = core.history[-1]
    assert len(record.updates) == 1_000
    assert record.unrecorded == 5_000
    assert sum(update.node_id == "a" for update in record.updates) == 20
    assert max(len(update.message) for update in record.updates) == 200


def test_the_oldest_rounds_lose_what_they_say_of_single_updates():
    nodes = tuple(f"n{k}" for k in range(3_000))
    core, _ = begun(nodes=nodes, max_abandoned=100)
    for number in range(1, 11):
        core.handle(events.Tick(), 100.0 * number)
        core.handle(events.Begin(nodes, "more", 0.0), 100.0 * number)
    kept = [len(record.updates) for record in core.history]
    assert sum(kept) <= 20_000
    assert [record.unrecorded + len(record.updates) for record in core.history][:-1] == [3_000] * 10
    assert kept[0] == 0
    assert kept[-2] == 3_000


def epsilon_of(core):
    return core.spending.metrics(core.aggregated)["privacy/epsilon"]


def test_every_update_that_a_local_node_was_asked_for_is_counted():
    core, asked = begun(nodes=("a", "b"), buffer_size=10, quorum=1, privacy={"mode": "local"})
    assignment = asked["a"]
    for _ in range(9):
        (ask,) = deliver(core, assignment)
        assignment = ask.assignments[0]
    assert epsilon_of(core) == epsilon(1.0, 10, 1e-5)
    core.handle(events.Refused("a", 1, "ANSWERED_TWICE", "another one"), 3.0)
    assert epsilon_of(core) == epsilon(1.0, 11, 1e-5)
    # Rounds that were abandoned are counted too.
    core, asked = begun(nodes=("a", "b"), quorum=2, selection={"min_nodes": 2}, privacy={"mode": "local"})
    deliver(core, asked["a"])
    core.handle(events.Tick(), 11.0)
    assert core.history[-1].state is RoundState.ABANDONED
    core.handle(events.Begin(("a", "b"), "more", 0.0), 12.0)
    assert epsilon_of(core) == epsilon(1.0, 2, 1e-5)


@pytest.mark.parametrize("mode", ["central", "local"])
def test_a_budget_of_one_never_spends_more_than_one(mode):
    private = {"mode": mode, "noise_multiplier": 12.0, "epsilon_budget": 1.0}
    core, _ = begun(nodes=("a", "b"), rounds=1_000, privacy=private)
    spent = []
    while core.state is FederationState.RUNNING:
        for node in core.busy_nodes():
            deliver(core, core.assignments[node])
        core.handle(events.Aggregated(core.version + 1, "ff", core.spending.metrics(core.version)), 3.0)
        spent.append(core.history[-1].metrics["privacy/epsilon"])
        core.handle(events.Begin(("a", "b"), "more", 0.0), 4.0)
    assert core.state is FederationState.STOPPED
    assert "budget of epsilon 1" in core.reason
    assert max(spent) == spent[-1] <= 1.0
    assert len(spent) == releases_within(12.0, 1e-5, 1.0, 1_000) == 2
    assert epsilon(12.0, len(spent) + 1, 1e-5) > 1.0


def test_a_buffer_of_private_nodes_ends_when_all_have_given_what_they_may():
    private = {"mode": "local", "noise_multiplier": 12.0, "epsilon_budget": 1.0}
    core, asked = begun(nodes=("a", "b"), buffer_size=3, rounds=1_000, privacy=private)
    (again,) = deliver(core, asked["a"])
    assert deliver(core, again.assignments[0]) == []
    (again,) = deliver(core, asked["b"], now=3.0)[-1:]
    assert isinstance(again, events.Aggregate)
    core.handle(events.Aggregated(2, "ff"), 4.0)
    (ask,) = core.handle(events.Begin(("a", "b"), "more", 0.0), 5.0)
    assert [each.node_id for each in ask.assignments] == ["b"]
    deliver(core, ask.assignments[0], now=6.0)
    (end,) = core.handle(events.Begin(("a", "b"), "more", 0.0), 7.0)
    assert end.state is FederationState.STOPPED
    assert max(core.spending.by_node.values()) == 2


def test_a_private_federation_is_judged_on_public_data_only():
    for public in (False, True):
        core, asked = begun(
            nodes=("a",), privacy={"mode": "local"}, evaluation={"interval_rounds": 1, "on_public_data": public}
        )
        deliver(core, asked["a"])
        (action,) = core.handle(events.Aggregated(2, "ff"), 3.0)
        assert isinstance(action, events.AskEvaluation) == public


def test_a_round_with_a_damaged_update_among_those_that_count_is_abandoned_and_not_aggregated():
    core, asked = begun(selection={"min_nodes": 2})
    for node in NODES:
        deliver(core, asked[node])
    assert core.phase is Phase.AGGREGATING
    core.handle(events.Damaged(asked["b"].nonce), 5.0)
    assert core.history[-1].state is RoundState.ABANDONED
    assert "damaged on disk" in core.history[-1].reason
    assert core.resume(6.0) == [events.SeekNodes()]
