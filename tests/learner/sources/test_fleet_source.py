"""What the outcomes of rollouts and evaluations mean for their run. No scheduler answers here."""

import asyncio
import contextlib
from dataclasses import dataclass, field, replace

import pytest

from learner.config import ExperienceConfig, TrainingConfig
from learner.sources.actor_listing import RolloutActor
from learner.sources.fleet_source import FleetSource, Listener
from parlmesh.errors import FleetError, InvalidInput, Unavailable
from parlmesh.rpc import open_channel
from parlmesh.testing import HandClock
from parlmesh.types import Fragment, Trajectory
from parlmesh.v1 import task_pb2 as pb
from parlmesh.wire import payload_from_proto, payload_to_proto


@dataclass
class Heard:
    failed: list[str] = field(default_factory=list)
    hopeless: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def fleet(**training):
    heard, clock = Heard(), HandClock()
    listener = Listener(
        changed=lambda: None,
        rollout_failed=lambda sentence, traceback: heard.failed.append(sentence),
        hopeless=heard.hopeless.append,
        obstacle=lambda sentence: None,
        note=lambda sentence: None,
    )
    async with open_channel("127.0.0.1:1") as channel:
        config = TrainingConfig(**training)
        source = FleetSource(channel, "run", "uid", config, ExperienceConfig(), listener, clock=clock)
        source._actors.members = [RolloutActor("old", "n1", 1), RolloutActor("new", "n2", 1)]
        yield source, heard, clock


async def ask(source):
    """The spec of one more rollout."""
    await source.request(1, 1)
    return source._dispatcher._lanes["rollout"].unsent[-1]


def failed(task_id, reason, message="no", actor="old"):
    failure = pb.Failure(reason=reason, message=message)
    return pb.Outcome(task_id=task_id, state=pb.TASK_STATE_FAILED, failure=failure, actor_id=actor)


async def test_a_rollout_asks_for_its_own_version_and_leaves_the_next_one_alone():
    async with fleet(num_envs=8, max_policy_lag=1) as (source, _, _):
        asked = []
        for version in (1, 2):
            await source.request(1, version)
            asked.append(payload_from_proto(source._dispatcher._lanes["rollout"].unsent[-1].payload)[0])
        assert [each.pop("min_policy_version") for each in asked] == [1, 2]
        assert asked[0] == asked[1]
        assert (asked[0]["run_id"], asked[0]["run_uid"], asked[0]["num_envs"]) == ("run", "uid", 8)
        assert asked[0]["environment"]["id"] == source._config.environment.id


async def test_tasks_that_a_scheduler_forgot_are_asked_for_again_and_are_nobodys_failure():
    async with fleet(max_failed_rollouts=5) as (source, heard, clock):
        for _ in range(50):
            spec = await ask(source)
            source._dispatcher._settle(failed(spec.task_id, "TASK_LOST", actor=""))
            clock.advance(1.0)
        source._give_up_if_hopeless()
        assert (source.outstanding, heard.failed, heard.hopeless) == (0, [], [])


async def test_an_old_actor_costs_its_tasks_and_others_are_asked():
    async with fleet(max_failed_rollouts=5) as (source, heard, clock):
        for _ in range(3):
            spec = await ask(source)
            assert spec.placement.node_id == ""
            source._dispatcher._settle(failed(spec.task_id, "INVALID_PARAMETERS"))
            clock.advance(1.0)
        for _ in range(10):
            spec = await ask(source)
            assert spec.placement.node_id == "n2"
            assert spec.queue_timeout.ToSeconds() > 0
            source._dispatcher._settle(failed(spec.task_id, "QUEUE_TIMEOUT"))
        source._give_up_if_hopeless()
        assert len(heard.failed) == 3
        assert heard.hopeless == []


async def test_the_word_of_one_actor_that_does_not_know_of_uids_costs_that_actor_alone():
    unknown = "rollout has no parameter 'run_uid'; it has: seed"
    async with fleet() as (source, heard, clock):
        spec = await ask(source)
        assert payload_from_proto(spec.payload)[0]["run_uid"] == "uid"
        source._dispatcher._settle(failed(spec.task_id, "INVALID_PARAMETERS", unknown))
        for _ in range(5):
            # However long it says no more.
            clock.advance(100.0)
            spec = await ask(source)
            assert payload_from_proto(spec.payload)[0]["run_uid"] == "uid"
            assert spec.placement.node_id == "n2"
        assert source._actors.evaluator(source._old) == ""
        # Where all are old, none needs to know.
        source._dispatcher._settle(failed(spec.task_id, "INVALID_PARAMETERS", unknown, actor="new"))
        spec = await ask(source)
        assert "run_uid" not in payload_from_proto(spec.payload)[0]
        assert len(heard.failed) == 2
        # One of this release comes.
        source._actors.members = [*source._actors.members, RolloutActor("newest", "n3", 1)]
        spec = await ask(source)
        assert payload_from_proto(spec.payload)[0]["run_uid"] == "uid"
        assert spec.placement.node_id == "n3"


async def test_a_run_fails_when_rollouts_fail_everywhere_and_no_trajectory_is_taken_between():
    async with fleet(max_failed_rollouts=6) as (source, heard, clock):
        for turn in range(20):
            spec = await ask(source)
            if turn == 12:
                source.asked.deliver(Trajectory("run", "new", 1, 1, 1, Fragment({}, []), spec.task_id))
                continue
            source._dispatcher._settle(failed(spec.task_id, "HANDLER_ERROR", f"boom {turn}", ("old", "new")[turn % 2]))
            clock.advance(1.0)
            if turn > 12:
                source._give_up_if_hopeless()
        assert heard.hopeless[0] == "rollouts fail on the actors, 6 in a row: boom 18"


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"mean_return": "x", "min_return": 1, "max_return": 1, "episodes": 1},
        {"mean_return": 1.0, "min_return": None, "max_return": 1, "episodes": 1},
        {"mean_return": "inf", "min_return": 1, "max_return": 1, "episodes": 1},
        {"mean_return": 1.0, "min_return": 1, "max_return": 1, "episodes": 0},
        {"mean_return": 1.0, "min_return": 1, "max_return": 1, "episodes": [3]},
    ],
)
async def test_an_evaluation_that_is_none_is_refused_with_the_actors_name(answer):
    async with fleet() as (source, _, _clock):
        evaluating = asyncio.ensure_future(source.evaluate(1, 0, 30.0))
        await asyncio.sleep(0)
        (task_id,) = source._evaluations
        state, result = pb.TASK_STATE_SUCCEEDED, payload_to_proto(answer)
        source._dispatcher._settle(pb.Outcome(task_id=task_id, state=state, result=result, actor_id="liar"))
        with pytest.raises(InvalidInput, match="actor liar answered"):
            await evaluating


async def test_an_evaluation_that_takes_too_long_is_taken_back_and_is_no_more_urgent_than_rollouts():
    async with fleet() as (source, _, _clock):
        taken_back = []

        async def cancel(task_ids):
            taken_back.extend(task_ids)

        source._dispatcher.cancel = cancel
        evaluating = asyncio.ensure_future(source.evaluate(1, 0, 0.05))
        await asyncio.sleep(0)
        (task_id,) = source._evaluations
        spec = source._dispatcher._lanes["evaluate"].unsent[-1]
        assert (spec.priority, spec.run_timeout.ToMilliseconds()) == (pb.PRIORITY_BACKGROUND, 50)
        with pytest.raises(TimeoutError):
            await evaluating
        assert taken_back == [task_id]
        assert source._evaluations == {}


@pytest.mark.parametrize("play", ["greedy", "sampled"])
async def test_actors_are_asked_to_play_as_the_settings_say(play):
    async with fleet(evaluation_play=play) as (source, _, _clock):
        parameters, _ = payload_from_proto(source._evaluation(1, 0, 30.0).payload)
        assert parameters.get("sampled", False) is (play == "sampled")


async def test_an_evaluation_that_nobody_offers_costs_itself_and_holds_up_no_rollout():
    async with fleet() as (source, _, _clock):
        obstacles: list[str] = []
        source._listener = replace(source._listener, obstacle=obstacles.append)
        source._dispatcher._tell("evaluate", "the scheduler takes no tasks: no actor offers evaluate")
        with pytest.raises(Unavailable, match="no actor offers evaluate"):
            await source.evaluate(1, 0, 0.05)
        assert obstacles == [""]
        source._dispatcher._tell("rollout", "the scheduler takes no tasks: no actor offers rollout")
        assert obstacles[-1] == "the scheduler takes no tasks: no actor offers rollout"


async def test_a_failed_evaluation_says_why():
    async with fleet() as (source, _, _clock):
        evaluating = asyncio.ensure_future(source.evaluate(1, 0, 30.0))
        await asyncio.sleep(0)
        (task_id,) = source._evaluations
        source._dispatcher._settle(failed(task_id, "HANDLER_ERROR", "the world broke"))
        with pytest.raises(FleetError, match="the world broke"):
            await evaluating


async def test_nodes_evaluate_in_turn_and_another_one_does_when_its_turn_passes():
    async with fleet() as (source, _, _clock):
        source._actors._evaluators = ["n1", "n2"]
        found = []
        for reason in ("", "", "QUEUE_TIMEOUT", ""):
            evaluating = asyncio.ensure_future(source.evaluate(1, 0, 30.0))
            for why in dict.fromkeys((reason, "")):
                for _ in range(5):
                    await asyncio.sleep(0)
                (task_id,) = source._evaluations
                found.append(source._dispatcher._lanes["evaluate"].unsent[-1].placement.node_id)
                answer = {f"{name}_return": 1.0 for name in ("mean", "min", "max")} | {"episodes": 1}
                done = pb.Outcome(task_id=task_id, state=pb.TASK_STATE_SUCCEEDED, result=payload_to_proto(answer))
                source._dispatcher._settle(failed(task_id, why) if why else done)
                await asyncio.sleep(0)
            assert (await evaluating).mean_return == 1.0
        assert found == ["n1", "n2", "n1", "", "n2"]


async def test_where_there_is_one_node_it_evaluates():
    async with fleet() as (source, _, _clock):
        source._actors._evaluators = ["n1"]
        assert source._actors.evaluator() == ""


async def test_who_says_that_rollouts_are_done_and_sends_nothing_is_not_asked_for_a_while():
    async with fleet() as (source, heard, clock):
        for turn in range(3):
            spec = await ask(source)
            assert spec.placement.node_id == ""
            told = pb.Outcome(task_id=spec.task_id, state=pb.TASK_STATE_SUCCEEDED, actor_id="old")
            told.result.CopyFrom(payload_to_proto({"accepted": 1, "refused": {}}))
            source._dispatcher._settle(told)
            clock.advance(1.0)
            assert len(heard.failed) == turn + 1
        assert "no trajectory came" in heard.failed[0]
        assert (await ask(source)).placement.node_id == "n2"
        clock.advance(100.0)
        assert (await ask(source)).placement.node_id == ""


async def test_a_rollout_whose_trajectory_came_too_late_is_nobodys_failure():
    async with fleet() as (source, heard, _):
        for _ in range(10):
            spec = await ask(source)
            source.asked.note_arrival(spec.task_id)
            source._dispatcher._settle(pb.Outcome(task_id=spec.task_id, state=pb.TASK_STATE_SUCCEEDED, actor_id="old"))
        assert heard.failed == []


async def test_who_holds_a_rollout_far_longer_than_others_rests_longer_each_time_and_no_run_fails_of_it():
    async with fleet(max_failed_rollouts=5) as (source, heard, clock):
        while (spec := await ask(source)).run_timeout.ToSeconds() == 60:
            source.asked.deliver(Trajectory("run", "new", 1, 1, 1, Fragment({}, []), spec.task_id))
        assert spec.run_timeout.ToSeconds() == 10
        for rest in (60.0, 120.0, 240.0):
            source._dispatcher._settle(failed(spec.task_id, "DEADLINE_EXCEEDED"))
            # A trajectory does not make it good.
            again = (await ask(source)).task_id
            source.asked.deliver(Trajectory("run", "old", 1, 1, 1, Fragment({}, []), again))
            clock.advance(rest - 1.0)
            assert (await ask(source)).placement.node_id == "n2"
            clock.advance(2.0)
            spec = await ask(source)
            assert spec.placement.node_id == ""
        source._give_up_if_hopeless()
        assert (heard.failed, heard.hopeless) == ([], [])
