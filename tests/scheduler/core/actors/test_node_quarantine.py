"""Bad answers count against their node; too many of them, or an operator, put it in quarantine."""

import pytest

from parlmesh.errors import InvalidInput, NotFound
from parlmesh.v1 import scheduler_service_pb2 as pb
from scheduler.config import StrikeConfig
from scheduler.core.actors.node_quarantine import MAX_NODES, Strikes
from scheduler.core.actors.placement import ActorCommand, ActorState
from scheduler.core.task import NO_RESULT, Placement, Task
from scheduler.wire import queries
from tests.scheduler.conftest import Harness, ids, noop
from tests.scheduler.journal.test_recovery import rebuilt


def say_nothing(harness: Harness, session: int, task: Task) -> None:
    harness.report(session, results=[(task.task_id, task.lease_id, b"", NO_RESULT, 0.0)], credits=1)


def test_strikes_count_within_their_window_and_are_bounded() -> None:
    strikes = Strikes(StrikeConfig(limit=3, window_seconds=10, quarantine_seconds=5))
    assert [strikes.add("n", "bad", now) for now in (0.0, 1.0, 11.5)] == [False, False, False]
    assert (strikes.count("n", 11.5), strikes.count("n", 21.5)) == (1, 0)
    assert [strikes.add("n", "worse", now) for now in (12.0, 13.0)] == [False, True]
    assert strikes.quarantines["n"] == ("3 strikes, the last: worse", 18.0)
    assert list(strikes.over(17.9)) == []
    assert list(strikes.over(18.0)) == ["n"]
    for number in range(MAX_NODES + 5):
        strikes.add(str(number), "bad", 20.0)
    assert len(strikes._times) == MAX_NODES


def test_strikes_are_shown_only_while_they_count() -> None:
    harness = Harness(strikes={"limit": 3, "window_seconds": 10})
    session = harness.connect("a", node_id="n1")
    harness.core.judge([], ["n1"], ActorCommand.STRIKE, "it lies", harness.now)
    harness.pass_time(6, alive=[session])
    harness.core.judge([], ["n1"], ActorCommand.STRIKE, "it lies", harness.now)
    harness._collect()

    def shown() -> int:
        (actor,) = queries.list_actors(harness.core, pb.ListActorsRequest(), harness.now).actors
        return actor.strikes

    assert shown() == 2
    harness.pass_time(5, alive=[session])
    assert shown() == 1
    harness.pass_time(6, alive=[session])
    assert shown() == 0
    # What no longer counts is still in the journal until the node is forgiven.
    harness.command(ActorCommand.RESUME, "a")
    assert rebuilt(harness).core.sessions.quarantine.strikes.times("n1") == ()


def test_a_node_that_answers_nothing_too_often_is_put_in_quarantine_and_its_work_goes_to_others() -> None:
    harness = Harness(strikes={"limit": 2, "quarantine_seconds": 30})
    bad = harness.connect("bad", node_id="n1", slots=3)
    harness.submit(noop("1"), noop("2"), noop("3"))
    one, two, _ = harness.take(bad)
    say_nothing(harness, bad, one)
    assert harness.states("1", "2", "3") == ["FAILED", "RUNNING", "RUNNING"]
    assert harness.actor("bad").state is ActorState.READY
    say_nothing(harness, bad, two)
    assert harness.actor("bad").state is ActorState.QUARANTINED
    assert harness.states("1", "2", "3") == ["FAILED", "FAILED", "QUEUED"]
    assert [lease.task_id for lease in harness.revoked["bad"]] == ["3"]
    other = harness.connect("good", node_id="n2")
    assert ids(harness.take(other)) == ["3"]
    again = harness.connect("bad-2", node_id="n1")
    harness.submit(noop("4"))
    assert harness.take(again) == []
    harness.pass_time(31, alive=[bad, other, again])
    assert harness.actor("bad").state is ActorState.READY
    assert "4" in ids([*harness.take(bad), *harness.take(again)])


def test_an_answer_for_a_lease_of_another_is_refused_and_is_a_strike(harness: Harness) -> None:
    owner = harness.connect("owner", node_id="n1")
    thief = harness.connect("thief", node_id="n2", credits=0)
    harness.submit(noop("t"))
    (task,) = harness.take(owner)
    harness.report(thief, results=[(task.task_id, task.lease_id, b"", None, 0.1)])
    assert harness.states("t") == ["RUNNING"]
    strikes = harness.core.sessions.quarantine.strikes
    assert (strikes.count("n2", harness.now), strikes.count("n1", harness.now)) == (1, 0)


@pytest.mark.parametrize("release", [ActorCommand.RESUME, ActorCommand.RESET])
def test_an_operator_puts_a_node_in_quarantine_and_ends_it(harness: Harness, release: ActorCommand) -> None:
    session = harness.connect("a", node_id="n1")
    harness.submit(noop("t"))
    assert ids(harness.take(session)) == ["t"]
    actors = harness.core.judge([], ["n1", "absent"], ActorCommand.QUARANTINE, "it lies", harness.now)
    harness._collect()
    assert [actor.actor_id for actor in actors] == ["a"]
    assert harness.actor("a").state is ActorState.QUARANTINED
    assert harness.core.sessions.quarantine.strikes.quarantines["n1"].reason == "it lies"
    harness.command(release, "a")
    harness.report(session, credits=1)
    assert harness.actor("a").state is ActorState.READY
    assert ids(harness.take(session)) == ["t"]


def test_a_judgement_needs_a_reason_and_a_name(harness: Harness) -> None:
    harness.connect("a")
    with pytest.raises(InvalidInput, match="needs a reason"):
        harness.core.judge(["a"], [], ActorCommand.STRIKE, "", harness.now)
    with pytest.raises(InvalidInput, match="actor_ids is empty"):
        harness.core.judge([], [], ActorCommand.STRIKE, "why", harness.now)
    with pytest.raises(NotFound):
        harness.core.judge(["stranger"], [], ActorCommand.STRIKE, "why", harness.now)
    with pytest.raises(NotFound, match="nowhere"):
        harness.core.command([], ActorCommand.PAUSE, harness.now, ["nowhere"])


def test_labels_of_a_certificate_are_attested_and_the_operator_has_the_last_word() -> None:
    harness = Harness(attested_labels={"n1": {"zone": "eu"}})
    said = (("zone", "us"), ("rack", "7"))
    harness.connect("a", node_id="n1", proven=True, attested=said, labels=(("rack", "9"),))
    harness.connect("b", node_id="n2", proven=True, attested=said)
    labels = {actor_id: dict(harness.core.life.fleet.actors[actor_id].labels) for actor_id in "ab"}
    assert labels == {
        "a": {"rack": "9", "attested/zone": "eu", "attested/rack": "7"},
        "b": {"attested/zone": "us", "attested/rack": "7"},
    }


def test_attested_labels_are_the_operators_and_cannot_be_claimed() -> None:
    harness = Harness(attested_labels={"n1": {"zone": "eu"}})
    proven = harness.connect("a", node_id="n1", proven=True)
    claimed = harness.connect("b", node_id="n1-other", labels=(("zone", "eu"),), proven=True)
    with pytest.raises(InvalidInput, match="only an operator"):
        harness.connect("c", node_id="n2", labels=(("attested/zone", "eu"),))
    harness.submit(noop("t", placement=Placement("", frozenset({("attested/zone", "eu")}))))
    assert (ids(harness.take(proven)), harness.take(claimed)) == (["t"], [])


def test_strikes_and_quarantines_outlive_a_restart() -> None:
    harness = Harness(strikes={"limit": 2, "window_seconds": 100, "quarantine_seconds": 30})
    for name in ("worse", "bad", "forgiven"):
        harness.connect(name, node_id=name)
    strike, quarantine, resume = ActorCommand.STRIKE, ActorCommand.QUARANTINE, ActorCommand.RESUME
    for node_id, command in (("worse", quarantine), ("bad", strike), ("forgiven", strike), ("forgiven", quarantine)):
        harness.core.judge([], [node_id], command, "it lies", harness.now)
    harness.command(resume, "forgiven")
    copy = rebuilt(rebuilt(harness))
    worse, bad, forgiven = (copy.connect(name, node_id=name) for name in ("worse", "bad", "forgiven"))
    strikes = copy.core.sessions.quarantine.strikes
    assert strikes.quarantines["worse"].reason == "it lies"
    assert [strikes.count(name, copy.now) for name in ("worse", "bad", "forgiven")] == [0, 1, 0]
    states = [copy.actor(name).state for name in ("worse", "bad", "forgiven")]
    assert states == [ActorState.QUARANTINED, ActorState.READY, ActorState.READY]
    copy.core.judge([], ["bad"], strike, "again", copy.now)
    assert copy.actor("bad").state is ActorState.QUARANTINED
    copy.pass_time(31, alive=[worse, bad, forgiven])
    assert copy.actor("worse").state is ActorState.READY
    assert not rebuilt(copy).core.sessions.quarantine.strikes.quarantines
