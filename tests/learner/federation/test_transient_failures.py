"""Causes that pass: a full disk, a scheduler that refuses or is away. A federation waits them out."""

import asyncio
import json
import math
import shutil
import stat

import grpc.aio
import numpy as np
import pytest

from learner.federation import definition_file
from learner.federation.connected_nodes import NodesFound
from learner.federation.journal import Journal, read_journal
from learner.federation.rules.events import Delivered
from learner.federation.rules.records import FederationState
from learner.federation.rules.rounds import Rounds
from learner.federation.rules.snapshot import state_of
from learner.federation.transient_failures import passing
from parlmesh.errors import AlreadyExists, FailedPrecondition, InvalidInput, Unavailable
from parlmesh.testing import serve
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.wire import payload_to_proto

from .conftest import SIZE, Scheduler, files_no_longer_than, serving


def vector_of(node, version):
    return np.random.default_rng([ord(node), version]).standard_normal(SIZE).astype(np.float32)


def test_only_what_can_go_away_by_itself_is_waited_out():
    assert passing(OSError(28, "No space left on device")) == "the learner's disk: No space left on device"
    assert passing(ExceptionGroup("", [Unavailable("away"), OSError(5, "I/O error")])) == "away"
    assert passing(MemoryError())
    assert not passing(InvalidInput("a rule that cannot work"))
    assert not passing(ExceptionGroup("", [OSError(28, "full"), KeyError("a defect")]))


async def shown(bench):
    found = (await bench.stub.GetFederation(pb.GetFederationRequest(), timeout=60.0)).federation
    return found.state, found.reason


@pytest.mark.parametrize("moment", ["update", "join", "begin"])
async def test_a_full_disk_pauses_a_federation_and_changes_no_bit_of_its_model(tmp_path, moment):
    values = {"rounds": 4, "privacy": {"mode": "central", "clip_norm": 2.0}}
    async with serve([Scheduler().service]) as address, serving(tmp_path / "f", address) as bench:
        federation = await bench.start(**values)
        journal = tmp_path / "f" / "f" / "journal.jsonl"
        quiet = tmp_path / "quiet"
        # The same noise in both: the folder as it is before the first round.
        quiet.mkdir()
        shutil.copytree(tmp_path / "f", quiet, dirs_exist_ok=True)
        asked = await bench.assignments(federation, 1)
        for node in ("a", "b") if moment == "join" else ("a",):
            await bench.submit(asked[node], vector_of(node, 1))
        if moment == "begin":
            for node in "bc":
                await bench.submit(asked[node], vector_of(node, 1))
        room = {"update": 1, "join": 400, "begin": 60}[moment]
        with files_no_longer_than(journal.stat().st_size + room):
            ending = asyncio.ensure_future(bench.finish(federation, vector_of))
            await bench.until(lambda: "File too large" in federation.obstacle)
            state, reason = await shown(bench)
            assert (state, reason) == (pb.FEDERATION_STATE_RUNNING, "the learner's disk: File too large")
            await asyncio.wait({ending}, timeout=0.5)
            assert not ending.done()
        await ending
        assert federation.core.state is FederationState.FINISHED
        assert federation.obstacle == ""
        assert (await shown(bench))[1] == "all 4 rounds are done"
        assert b"Stop" not in journal.read_bytes()
    async with serving(quiet) as bench:
        again = bench.federations.get("f")
        again._search.list_nodes = federation._search.list_nodes
        await bench.finish(again, vector_of)
        assert again.core.digest == federation.core.digest


async def test_a_scheduler_that_refuses_its_tasks_pauses_it_until_it_takes_them(tmp_path):
    scheduler = Scheduler()
    scheduler.refusal = FailedPrecondition("no actor knows the kind federated_fit", reason="UNKNOWN_KIND")
    async with serve([scheduler.service]) as address, serving(tmp_path / "f", address) as bench:
        federation = await bench.start(rounds=1, round_seconds=0.2, max_abandoned=1_000)
        await bench.until(lambda: "no actor knows the kind federated_fit" in federation.obstacle)
        born = federation.core.deadline
        await bench.until(lambda: federation.core.deadline > born + 0.5)
        assert federation.core.round == 1
        state, reason = await shown(bench)
        assert state == pb.FEDERATION_STATE_RUNNING
        assert "no actor knows the kind federated_fit" in reason
        scheduler.refusal = None
        await bench.until(lambda: len(scheduler.tasks) == 3)
        await bench.finish(federation, vector_of)
        assert federation.core.state is FederationState.FINISHED


async def test_without_a_scheduler_no_wait_counts_against_a_federation(tmp_path):
    async with serving(tmp_path / "f") as bench:
        there = bench.federations._list_nodes
        federation = await bench.start(rounds=1, round_seconds=0.2, wait_seconds=0.2, max_abandoned=1_000)
        await bench.assignments(federation, 1)
        federation._search.list_nodes = there
        await bench.until(lambda: "scheduler" in federation.obstacle)
        born = federation.core.deadline
        await bench.until(lambda: federation.core.deadline > born + 0.5)
        assert federation.core.round == 1
        waiting = federation.core.state
        assert waiting is FederationState.RUNNING
        await bench.finish(federation, vector_of)
        assert federation.core.state is FederationState.FINISHED


async def test_a_federation_that_waits_can_be_stopped(tmp_path):
    scheduler = Scheduler()
    scheduler.refusal = InvalidInput("never", reason="TOO_LARGE")
    async with serve([scheduler.service]) as address, serving(tmp_path / "f", address) as bench:
        federation = await bench.start(rounds=1, round_seconds=0.5)
        await bench.until(lambda: "never" in federation.obstacle)
        await bench.stub.StopFederation(pb.StopFederationRequest(), timeout=60.0)
        await bench.until(lambda: federation.core.state is not FederationState.RUNNING)


PRIVATE = {"rounds": 2, "privacy": {"mode": "local", "clip_norm": 2.0}}


@pytest.mark.parametrize("ending", ["", ".witness"])
async def test_a_federation_whose_journal_is_lost_is_damaged_and_forgets_nothing_of_what_it_gave_away(tmp_path, ending):
    """With its witness, and without one as an older learner leaves it, by its models."""
    journal = tmp_path / "f" / "journal.jsonl"
    async with serving(tmp_path) as bench:
        federation = await bench.start(**PRIVATE)
        await bench.assignments(federation, 1)
        await bench.finish(federation, vector_of)
        spent = federation.core.spending.metrics(federation.core.version)
        assert spent["privacy/epsilon"] > 0.0
    journal.rename(tmp_path / "copy")
    if ending:
        journal.with_name(journal.name + ending).unlink()
    async with serving(tmp_path) as bench:
        with pytest.raises(FailedPrecondition, match=r"damaged on disk.*put a whole copy in its place"):
            bench.federations.get("f")
        with pytest.raises(AlreadyExists, match="damaged on disk"):
            await bench.start(**PRIVATE)
        assert not journal.exists()
    (tmp_path / "copy").rename(journal)
    async with serving(tmp_path) as bench:
        core = bench.federations.get("f").core
        assert core.spending.metrics(core.version) == spent


async def test_a_journal_that_is_taken_away_pauses_a_federation_until_it_is_put_back(tmp_path):
    async with serve([Scheduler().service]) as address, serving(tmp_path, address) as bench:
        federation = await bench.start(rounds=4)
        journal, copy = tmp_path / "f" / "journal.jsonl", tmp_path / "copy"
        await bench.assignments(federation, 1)
        journal.rename(copy)
        ending = asyncio.ensure_future(bench.finish(federation, vector_of))
        await bench.until(lambda: "deleted, replaced or cut" in federation.obstacle)
        assert (await shown(bench))[0] == pb.FEDERATION_STATE_RUNNING
        copy.rename(journal)
        await ending
        assert federation.core.state is FederationState.FINISHED
        assert federation.obstacle == ""


@pytest.mark.parametrize("error", [MemoryError(), KeyError("a defect")])
@pytest.mark.parametrize("where", ["decision", "record"])
async def test_whatever_is_raised_between_a_decision_and_its_record_memory_is_what_the_journal_says(
    tmp_path, monkeypatch, error, where
):
    async with serve([Scheduler().service]) as address, serving(tmp_path, address) as bench:
        federation = await bench.start(rounds=2)
        asked = await bench.assignments(federation, 1)
        met: list[Delivered] = []
        handle, append = Rounds.handle, Journal.append

        def failing_handle(core, event, now):
            actions = handle(core, event, now)
            if where == "decision" and core is federation.core and isinstance(event, Delivered) and not met:
                met.append(event)
                raise error
            return actions

        def failing_append(journal, event, line):
            if where == "record" and isinstance(event, Delivered) and not met:
                met.append(event)
                raise error
            append(journal, event, line)

        monkeypatch.setattr(Rounds, "handle", failing_handle)
        monkeypatch.setattr(Journal, "append", failing_append)
        with pytest.raises(grpc.aio.AioRpcError):
            await bench.submit(asked["a"], vector_of("a", 1))
        assert len(met) == 1
        await bench.until(federation._resumed.is_set)
        replayed = Rounds(federation.config)
        for event, now in read_journal(tmp_path / "f" / "journal.jsonl"):
            replayed.handle(event, now)
        # A life that begins again gives the round its time again, and knows the digest of the first model.
        own = {"digest": "", "deadline": 0.0}
        assert state_of(federation.core) | own == state_of(replayed) | own
        await bench.finish(federation, vector_of)
        assert federation.core.state is FederationState.FINISHED


async def test_a_moment_in_which_the_disk_does_not_read_damages_no_federation(tmp_path, monkeypatch):
    async with serving(tmp_path) as bench:
        await bench.start(rounds=1)
    read, failing = definition_file.read, [True]

    def unsure(folder):
        if failing:
            raise OSError(5, "Input/output error")
        return read(folder)

    monkeypatch.setattr(definition_file, "read", unsure)
    async with serve([Scheduler().service]) as address, serving(tmp_path, address) as bench:
        with pytest.raises(Unavailable, match="cannot be read at present: the learner's disk: Input/output error"):
            bench.federations.get("f")
        with pytest.raises(Unavailable, match="cannot be read at present"):
            await bench.start(rounds=1)
        failing.clear()
        await bench.until(lambda: not bench.federations._unread)
        federation = bench.federations.get("f")

        async def list_nodes(_):
            return NodesFound(("a", "b", "c"))

        federation._list_nodes = list_nodes
        await bench.finish(federation, vector_of)
        assert federation.core.state is FederationState.FINISHED


async def test_a_broken_federation_costs_itself_and_no_other(tmp_path):
    folder = tmp_path / "f"
    async with serving(folder) as bench:
        await bench.start(rounds=1)
    written = folder / "f" / "federation.json"
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    for name, text in (("torn", written.read_text()[:50]), ("deep", "[" * 100_000), ("other", "[]")):
        (folder / name).mkdir()
        (folder / name / "federation.json").write_text(text)
    (folder / ".partial-g").mkdir()
    (folder / ".partial-link").symlink_to("/nowhere")
    async with serving(folder) as bench:
        assert bench.federations.get("f").federation_id == "f"
        for name in ("torn", "deep", "other"):
            with pytest.raises(FailedPrecondition, match="damaged on disk"):
                bench.federations.get(name)
            with pytest.raises(Exception, match="damaged on disk"):
                await bench.federations.start(name, json.loads("{}"))
        assert not list(folder.glob(".partial-*"))
        # One that is left behind while the learner runs.
        (folder / ".partial-g").mkdir()
        (folder / ".partial-g" / "models").mkdir()
        await bench.federations.start("g", {"task": "drift", "settings": {"parameters": SIZE}})


async def test_a_task_that_the_scheduler_lost_is_asked_for_again_with_the_same_nonce(tmp_path):
    scheduler = Scheduler()
    async with serve([scheduler.service]) as address, serving(tmp_path / "f", address) as bench:
        federation = await bench.start(nodes=("a",), rounds=1)
        await bench.until(lambda: len(scheduler.tasks) == 1)
        (lost,) = scheduler.tasks.values()
        failure = task_pb2.Failure(reason="TASK_LOST", message="the scheduler does not know the task")
        scheduler.outcomes.put_nowait(
            task_pb2.Outcome(task_id=lost.task_id, state=task_pb2.TASK_STATE_FAILED, failure=failure)
        )
        await bench.until(lambda: len(scheduler.tasks) == 2)
        again = next(task for task in scheduler.tasks.values() if task is not lost)
        assert again.payload == lost.payload
        assert federation.core.phase == "collecting"
        assert not federation.core.history[-1].updates


@pytest.mark.parametrize("result", [{}, {"sent": 1}, {"sent": "x", "failed": 7}, {"failed": {"a": [1]}}])
async def test_a_wrong_answer_fails_its_task_and_counts_against_its_node(tmp_path, result):
    scheduler = Scheduler()
    async with serve([scheduler.service]) as address, serving(tmp_path / "f", address) as bench:
        federation = await bench.start(nodes=("a", "b"), rounds=1)
        await bench.until(lambda: len(scheduler.tasks) == 2)
        liar = next(task for task in scheduler.tasks.values() if task.placement.node_id == "a")
        scheduler.outcomes.put_nowait(
            task_pb2.Outcome(task_id=liar.task_id, state=task_pb2.TASK_STATE_SUCCEEDED, result=payload_to_proto(result))
        )
        await bench.submit(federation.core.assignments["b"], vector_of("b", 1))
        await bench.until(lambda: federation.core.state is FederationState.FINISHED)
        found = {update.node_id: update.refusal for update in federation.core.history[-1].updates}
        assert found == {"a": "TASK_FAILED", "b": ""}


@pytest.mark.parametrize("samples", ["x", math.inf, 1.5e308])
async def test_a_wrong_evaluation_costs_its_node_and_not_the_federation(tmp_path, samples):
    scheduler = Scheduler()
    async with serve([scheduler.service]) as address, serving(tmp_path / "f", address) as bench:
        federation = await bench.start(nodes=("a", "b"), rounds=1, evaluation={"interval_rounds": 1})
        await bench.until(lambda: len(scheduler.tasks) == 2)
        for node, assignment in dict(federation.core.assignments).items():
            await bench.submit(assignment, vector_of(node, 1))
        await bench.until(lambda: len(scheduler.tasks) == 4)
        for task in list(scheduler.tasks.values())[2:]:
            node = task.placement.node_id
            judged = {node: {"samples": samples if node == "a" else 3, "metrics": {"loss": 0.5}}}
            state, result = task_pb2.TASK_STATE_SUCCEEDED, payload_to_proto({"judged": judged})
            scheduler.outcomes.put_nowait(task_pb2.Outcome(task_id=task.task_id, state=state, result=result))
        await bench.until(lambda: federation.core.state is not FederationState.RUNNING)
        assert federation.core.state is FederationState.FINISHED, federation.core.reason
        (record,) = federation.core.history
        assert record.metrics["evaluation/loss"] == 0.5
        assert [update.node_id for update in record.updates if update.refusal == "BAD_ANSWER"] == ["a"]


async def test_what_a_learning_task_raised_is_told_in_the_round_with_its_place(tmp_path):
    """Also where the sentence and the path are long."""
    path = f"/srv/{'deep/' * 12}spirals.py"
    told = f'ValueError: {"no data " * 30}\n  File "{path}", line 12, in fit: raise ValueError(text)'
    scheduler = Scheduler()
    async with serve([scheduler.service]) as address, serving(tmp_path / "f", address) as bench:
        federation = await bench.start(nodes=("a", "b"), rounds=1)
        await bench.until(lambda: len(scheduler.tasks) == 2)
        broken = next(task for task in scheduler.tasks.values() if task.placement.node_id == "a")
        failure = task_pb2.Failure(reason="USER_ERROR", message=told)
        scheduler.outcomes.put_nowait(
            task_pb2.Outcome(task_id=broken.task_id, state=task_pb2.TASK_STATE_FAILED, failure=failure)
        )
        await bench.submit(federation.core.assignments["b"], vector_of("b", 1))
        await bench.until(lambda: federation.core.state is FederationState.FINISHED)
        (said,) = (update.message for update in federation.core.history[-1].updates if update.node_id == "a")
        assert said.startswith("USER_ERROR: ValueError: no data")
        assert said.endswith(f" ({path}:12)")
        assert "\n" not in said
