"""Secure rounds of a whole learner over real gRPC; its nodes are real handlers, and drop out where the test says."""

import asyncio
from contextlib import asynccontextmanager

import grpc.aio
import numpy as np
import pytest

from actor.federation.federation_client import FederationLink
from actor.federation.local_nodes import LearningTasks, Participants
from actor.handlers.federated import FederatedFit
from actor.handlers.federated_mask import FederatedMask
from learner.federation.rules.records import FederationState, RoundState
from parlmesh.config import ListenConfig
from parlmesh.errors import FleetError
from parlmesh.federation.model_file import read_model
from parlmesh.federation.privacy import epsilon
from parlmesh.handlers import Context
from parlmesh.rpc.server import FleetServer
from parlmesh.security import SecurityConfig
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.wire import payload_from_proto, payload_to_proto
from tests.learner.federation.conftest import Scheduler, serving

NAMES = [f"n{k}" for k in range(10)]
STEPS = ("keys", "shares", "fit", "reveal")


class Link(FederationLink):
    """What handlers need of the coordinator, over the stub of the test."""

    def __init__(self, bench):
        self.bench = bench

    def model(self, federation_id, version, context):
        found = self.bench.federations.get(federation_id).stored(version)
        return read_model(memoryview(b"".join(found.chunks())))

    async def submit(self, updates):
        for update in updates:
            messages = [pb.SubmitUpdateRequest(header=update.header), pb.SubmitUpdateRequest(data=bytes(update.data))]
            await self.bench.stub.SubmitUpdate(iter(messages), timeout=30.0)
        return [type("Receipt", (), {"error": None})() for _ in updates]


class Nodes(Scheduler):
    """A scheduler that runs tasks at once, but for those of nodes that have left: these fail."""

    def __init__(self):
        super().__init__()
        self.left: dict[str, set[str]] = {step: set() for step in STEPS}
        self.seen = []
        # By step and node, what is answered instead of the truth.
        self.lies = {}
        self.link: Link | None = None
        self.handlers = {}
        self.running = set()

    def settle(self, bench):
        if self.link is not None:
            self.link.bench = bench
            return
        link = self.link = Link(bench)
        for name in NAMES:
            participants = Participants([name], link, LearningTasks({}))
            kinds = (FederatedFit(participants), FederatedMask(participants))
            self.handlers[name] = {handler.kind: handler for handler in kinds}

    async def SubmitTasks(self, request, context):
        for spec in request.tasks:
            task = asyncio.create_task(self._run(spec))
            self.running.add(task)
            task.add_done_callback(self._done)
        return await super().SubmitTasks(request, context)

    def _done(self, task):
        self.running.discard(task)
        if not task.cancelled() and task.exception() is None:
            self.outcomes.put_nowait(task.result())

    async def _run(self, spec):
        parameters, tensors = payload_from_proto(spec.payload)
        node, step = spec.placement.node_id, parameters.get("step", "fit")
        self.seen.append((step, node))
        if node in self.left[step]:
            failure = task_pb2.Failure(reason="GONE", message="its actor is gone")
            return task_pb2.Outcome(task_id=spec.task_id, state=task_pb2.TASK_STATE_FAILED, failure=failure)
        context = Context(task_id=spec.task_id, attempt=1, actor_id=node, slot=0)
        try:
            found = await asyncio.to_thread(self.handlers[node][spec.kind].run, parameters, tensors, context)
            if spec.kind == "federated_fit":
                found = await found.wait()
        except FleetError as error:
            failure = task_pb2.Failure(reason=error.reason, message=error.message)
            return task_pb2.Outcome(task_id=spec.task_id, state=task_pb2.TASK_STATE_FAILED, failure=failure)
        answered = found.parameters
        if (step, node) in self.lies:
            answered = {"answers": {node: self.lies[step, node](answered["answers"][node])}}
        result = payload_to_proto(answered)
        return task_pb2.Outcome(task_id=spec.task_id, state=task_pb2.TASK_STATE_SUCCEEDED, result=result)


@asynccontextmanager
async def fleet(folder, nodes=None):
    nodes = nodes or Nodes()
    server = FleetServer(
        listen=ListenConfig(port=0, drain_seconds=0.0), security=SecurityConfig(), services=[nodes.service]
    )
    port = await server.start()
    try:
        async with serving(folder, f"127.0.0.1:{port}") as bench:
            nodes.settle(bench)
            yield bench, nodes
    finally:
        for task in nodes.running:
            task.cancel()
        await server.drain()


async def start(bench, **values):
    settings = {
        "settings": {"parameters": 50, "step": 0.01, "samples": 30},
        "rounds": 1,
        "quorum": 3,
        "selection": {"min_nodes": 10},
        "secure": {"enabled": True},
        "gate": {"max_samples": 100},
        **values,
    }
    federation = await bench.start(NAMES, **settings)
    await bench.until(lambda: federation.core.state is not FederationState.RUNNING)
    return federation


def weights(federation):
    return read_model(memoryview(b"".join(federation.model.chunks()))).tensors["weight"]


@pytest.mark.parametrize("step", STEPS)
async def test_the_sum_is_that_of_the_rest_when_three_of_ten_drop_out(tmp_path, step):
    async with fleet(tmp_path) as (bench, nodes):
        nodes.left[step] = {"n1", "n4", "n8"}
        federation = await start(bench)
        record = federation.core.history[-1]
        assert record.state is RoundState.AGGREGATED, record
        # Who only left after its update had come is in the sum.
        summed = [k for k, name in enumerate(NAMES) if step == "reveal" or name not in nodes.left[step]]
        # Node k moves every number by (k + 1) · 0.01.
        expected = np.mean([(k + 1) * 0.01 for k in summed])
        assert record.metrics["update/nodes"] == len(summed)
        assert np.abs(weights(federation) - expected).max() <= record.metrics["secure/error"] + 1e-8
        assert record.metrics["secure/error"] < 1e-6
        assert {(step, name) for name in nodes.left[step]} <= set(nodes.seen)


@pytest.mark.parametrize("step", STEPS)
async def test_a_round_is_abandoned_with_its_reason_when_too_few_are_left(tmp_path, step):
    sentences = {
        "keys": "2 nodes gave their keys; a secure round needs 3",
        "shares": "2 nodes gave their shares; a secure round needs 6",
        "fit": "2 updates counted; 6 are needed",
        "reveal": "2 of 10 nodes helped to unmask the sum, too few of them",
    }
    async with fleet(tmp_path) as (bench, nodes):
        nodes.left[step] = set(NAMES[2:])
        federation = await start(bench, max_abandoned=1)
        record = federation.core.history[-1]
        assert (record.state, record.reason) == (RoundState.ABANDONED, sentences[step])
        assert federation.core.state is FederationState.FAILED
        assert federation.core.version == 1
        rounds = await bench.stub.ListRounds(pb.ListRoundsRequest(), timeout=10.0)
        assert rounds.rounds[0].reason == sentences[step]


async def test_a_secure_round_with_central_privacy_has_clipped_updates_and_noise(tmp_path):
    async with fleet(tmp_path) as (bench, _):
        privacy = {"mode": "central", "clip_norm": 0.1, "noise_multiplier": 1e-6}
        federation = await start(bench, privacy=privacy, gate={})
        record = federation.core.history[-1]
        assert record.state is RoundState.AGGREGATED
        # All numbers of an update are alike, and all updates but the first node's are longer than 0.1.
        assert np.allclose(weights(federation), (0.01 + 9 * 0.1 / np.sqrt(50)) / 10, atol=1e-6)
        assert "secure/weight" not in record.metrics
        assert record.metrics["privacy/epsilon"] > 0


@pytest.mark.parametrize("step", ["shares", "reveal"])
async def test_a_learner_that_stops_in_mid_round_ends_in_the_same_sum(tmp_path, monkeypatch, step):
    nodes, stopped = Nodes(), asyncio.Event()
    run = nodes._run

    async def hold(spec):
        wanted = payload_from_proto(spec.payload)[0].get("step", "fit")
        if wanted == step and spec.placement.node_id == "n5" and not stopped.is_set():
            stopped.set()
            await asyncio.Event().wait()
        return await run(spec)

    monkeypatch.setattr(nodes, "_run", hold)
    async with fleet(tmp_path, nodes) as (bench, _):
        task = asyncio.create_task(start(bench))
        await stopped.wait()
        task.cancel()
    async with fleet(tmp_path, nodes) as (bench, _):
        federation = bench.federations.get("f")
        await bench.until(lambda: federation.core.state is not FederationState.RUNNING)
        record = federation.core.history[-1]
        assert (record.number, record.state) == (1, RoundState.AGGREGATED), record
        assert np.allclose(weights(federation), 0.055, atol=1e-6)


async def test_an_unmasked_update_is_refused_before_its_data_is_read(tmp_path, monkeypatch):
    async with fleet(tmp_path) as (bench, nodes):
        nodes.left["fit"] = {"n0"}
        held = asyncio.Event()
        run = nodes._run

        async def hold(spec):
            if spec.kind == "federated_fit":
                await held.wait()
            return await run(spec)

        monkeypatch.setattr(nodes, "_run", hold)
        ending = asyncio.create_task(start(bench))
        try:
            await bench.until(lambda: "f" in bench.federations._federations)
            federation = bench.federations.get("f")
            await bench.until(lambda: federation.core.phase == "collecting")
            assignment = federation.core.assignments["n0"]
            changes = {"schema_digest": federation.schema.digest}
            with pytest.raises(grpc.aio.AioRpcError, match="updates of this federation are packed as masked, got none"):
                await bench.submit(assignment, np.ones(50, np.float32), **changes)
        finally:
            held.set()
            await ending
        spooled = (tmp_path / "f" / "updates.bin").read_bytes()
        assert np.ones(4, "<f4").tobytes() not in spooled


def every(value):
    """All hexadecimal words of an answer are this digit."""

    def changed(answer):
        if isinstance(answer, dict):
            return {name: changed(each) for name, each in answer.items()}
        return value * len(answer)

    return changed


LIES = {
    "a key of small order": ("keys", every("0")),
    "one key for both": ("keys", lambda answer: {**answer, "seal": answer["mask"]}),
    "shares that nobody can open": ("shares", every("1")),
    "wrong shares when they are revealed": ("reveal", every("1")),
}


@pytest.mark.parametrize("lie", LIES)
async def test_one_liar_costs_itself_and_no_secure_round(tmp_path, lie):
    step, told = LIES[lie]
    async with fleet(tmp_path) as (bench, nodes):
        nodes.lies = {(step, "n0"): told}
        federation = await start(bench, rounds=2, selection={"min_nodes": 9})
        assert federation.core.state is FederationState.FINISHED
        states = [record.state for record in federation.core.history]
        assert states.count(RoundState.AGGREGATED) == 2
        assert (step, "n0") in nodes.seen


@pytest.mark.parametrize("left", [set(), {"n1", "n4", "n6", "n8"}], ids=["all stay", "the threshold stays"])
async def test_nodes_that_stay_have_added_noise_enough_for_what_is_told(tmp_path, left):
    privacy = {"mode": "distributed", "clip_norm": 1.0, "noise_multiplier": 3.0, "uncounted_nodes": 2}
    async with fleet(tmp_path) as (bench, nodes):
        nodes.left["fit"] = left
        settings = {"parameters": 4_000, "step": 0.01, "samples": 30}
        federation = await start(bench, privacy=privacy, gate={}, quorum=6, settings=settings)
        record = federation.core.history[-1]
        assert record.state is RoundState.AGGREGATED, record
        assert ("fit", "n1") in nodes.seen
    summed = [k for k, name in enumerate(NAMES) if name not in left]
    assert record.metrics["update/nodes"] == len(summed)
    # Node k would move every number by (k + 1) · 0.01 and is cut to the length 1.
    expected = np.mean([min((k + 1) * 0.01, 1.0 / np.sqrt(4_000)) for k in summed])
    noise = (weights(federation) - expected) * len(summed)
    # Six of ten must stay, of which two are not counted on: the noise of any four suffices.
    assert noise.std() == pytest.approx(3.0 * np.sqrt(len(summed) / 4), rel=0.06)
    assert abs(noise.mean()) < 5 * noise.std() / np.sqrt(len(noise))
    assert record.metrics["privacy/epsilon"] == epsilon(3.0, 1, 1e-5, in_parts=True)
    assert all(update.samples == 0 for update in record.updates)


async def test_distributed_noise_ends_with_its_budget_and_rounds_that_fail_count(tmp_path):
    budget = epsilon(3.0, 2, 1e-5, in_parts=True)
    privacy = {"mode": "distributed", "noise_multiplier": 3.0, "epsilon_budget": budget}
    async with fleet(tmp_path) as (bench, nodes):
        nodes.left["reveal"] = set(NAMES[:5])
        federation = await start(bench, privacy=privacy, gate={}, rounds=9, max_abandoned=9)
        states = [record.state for record in federation.core.history]
    assert states == [RoundState.ABANDONED] * 2
    assert federation.core.state is FederationState.STOPPED
    assert "more than the budget of epsilon" in federation.core.reason
