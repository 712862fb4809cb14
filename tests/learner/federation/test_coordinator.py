import asyncio
import shutil
import threading
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
import safetensors.numpy
from google.protobuf.json_format import MessageToJson

from learner.federation import servicer
from learner.federation.connected_nodes import NodesFound
from learner.federation.coordinator import Federation
from learner.federation.rules.records import FederationState
from learner.federation.updates.update_aggregation import Aggregator
from parlmesh.federation.compression import encode
from parlmesh.federation.privacy import releases_within
from parlmesh.rpc import error_from_rpc
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.v1 import tensor_pb2
from parlmesh.wire import struct_to_proto

from .conftest import SIZE, serving, update_messages


def vector_of(node, version):
    return np.random.default_rng([ord(node), version]).standard_normal(SIZE).astype(np.float32)


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_from_rpc(caught.value).reason


async def download(stub, version=0):
    chunks = [
        chunk async for chunk in stub.GetFederatedModel(pb.GetFederatedModelRequest(version=version), timeout=60.0)
    ]
    return chunks[0].header, safetensors.numpy.load(b"".join(chunk.data for chunk in chunks))


async def test_rounds_give_the_weighted_mean_and_the_model_can_be_fetched(bench):
    federation = await bench.start(rounds=2)
    expected = np.zeros(SIZE)
    for number in (1, 2):
        asked = await bench.assignments(federation, number)
        samples = {"a": 10, "b": 20, "c": 30}
        for node, assignment in asked.items():
            await bench.submit(assignment, vector_of(node, number), samples=samples[node])
        expected += sum(samples[node] / 60 * vector_of(node, number).astype(np.float64) for node in "abc")
    await bench.until(lambda: federation.core.state is FederationState.FINISHED)
    header, tensors = await download(bench.stub)
    np.testing.assert_allclose(tensors["weight"], expected, atol=1e-6)
    assert (header.version, header.digest.hex()) == (3, federation.core.digest)
    answer = await bench.stub.ListRounds(pb.ListRoundsRequest(page_size=1), timeout=60.0)
    (newest,) = answer.rounds
    assert newest.number == 2
    assert [(u.node_id, round(u.node_weight, 3)) for u in newest.updates] == [("a", 0.167), ("b", 0.333), ("c", 0.5)]
    older = await bench.stub.ListRounds(pb.ListRoundsRequest(page_token=answer.next_page_token), timeout=60.0)
    assert [each.number for each in older.rounds] == [1]
    assert older.next_page_token == ""
    found = (await bench.stub.GetFederation(pb.GetFederationRequest(), timeout=60.0)).federation
    assert (found.state, found.aggregated_rounds) == (pb.FEDERATION_STATE_FINISHED, 2)


async def test_federations_are_listed_newest_first_and_by_pages(bench):
    for name in ("one", "two", "three"):
        federation = await bench.start(federation_id=name)
        federation.stop("enough")
        await bench.until(lambda federation=federation: federation.core.state is FederationState.STOPPED)
    found, token = [], ""
    while True:
        request = pb.ListFederationsRequest(page_size=2, page_token=token)
        answer = await bench.stub.ListFederations(request, timeout=60.0)
        found.append([each.federation_id for each in answer.federations])
        token = answer.next_page_token
        if not token:
            break
    assert found == [["three", "two"], ["one"]]


async def test_every_kind_of_bad_update_is_refused_by_name_and_changes_nothing(bench):
    federation = await bench.start()
    asked = await bench.assignments(federation, 1)
    good = vector_of("a", 1)
    await bench.submit(asked["a"], good)
    before = federation._spool.digest(0), repr(federation.core.answers)
    wrong_shape = [tensor_pb2.Tensor(name="weight", dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[1])]
    wrong_type = [tensor_pb2.Tensor(name="weight", dtype=tensor_pb2.DATA_TYPE_FLOAT64, shape=[SIZE])]
    nan = good.copy()
    nan[-1] = np.nan
    b = asked["b"]
    found = [
        await refused(bench.submit(b, good, round=9)),
        await refused(bench.submit(b, good, nonce=bytes(16))),
        await refused(bench.submit(b, good, base_version=7)),
        await refused(bench.submit(b, good, samples=0)),
        await refused(bench.submit(b, good, metrics=struct_to_proto({f"m{k}": 1.0 for k in range(65)}))),
        await refused(bench.submit(b, good, tensors=[])),
        await refused(bench.submit(b, good, tensors=wrong_shape)),
        await refused(bench.submit(b, good, tensors=wrong_type)),
        await refused(bench.submit(b, good[:-1])),
        await refused(bench.submit(b, good, size_bytes=4 << 40)),
        await refused(bench.submit(b, good, digest=bytes(32))),
        await refused(bench.submit(b, good, encoding=pb.UPDATE_ENCODING_INT8)),
        await refused(bench.submit(b, nan)),
        await refused(bench.submit(asked["a"], 2 * good)),
        await refused(bench.submit(b, good, node_id="stranger")),
    ]
    assert found == [
        "WRONG_ROUND",
        "WRONG_NONCE",
        "WRONG_BASE",
        "NO_SAMPLES",
        "UPDATE_METRICS",
        "UPDATE_SCHEMA",
        "UPDATE_SCHEMA",
        "UPDATE_SCHEMA",
        "UPDATE_SIZE",
        "UPDATE_SIZE",
        "UPDATE_DIGEST",
        "UPDATE_ENCODING",
        "NOT_FINITE",
        "ANSWERED_TWICE",
        "NOT_ASKED",
    ]
    assert (federation._spool.digest(0), repr(federation.core.answers)) == before
    recorded = [update.refusal for update in federation.core.history[-1].updates]
    assert recorded == found
    assert (await bench.submit(asked["a"], good)).round == 1


async def test_a_stream_that_breaks_off_leaves_nothing_to_join(bench):
    federation = await bench.start()
    asked = await bench.assignments(federation, 1)

    async def half():
        messages = update_messages(asked["a"], vector_of("a", 1))
        yield next(messages)
        yield next(messages)
        await asyncio.sleep(60.0)

    call = bench.stub.SubmitUpdate(half(), timeout=60.0)
    await bench.until(lambda: federation.intake.in_flight == 1)
    call.cancel()
    await bench.until(lambda: not federation.intake.in_flight)
    assert not federation.core.answers
    assert [update.refusal for update in federation.core.history[-1].updates] == ["UPDATE_INCOMPLETE"]
    await bench.submit(asked["a"], vector_of("a", 1))
    assert len(federation.core.answers) == 1


async def test_an_update_that_stands_still_loses_its_place_and_may_come_again(bench, monkeypatch):
    federation = await bench.start()
    asked = await bench.assignments(federation, 1)
    held = asyncio.Event()

    async def half():
        messages = update_messages(asked["a"], vector_of("a", 1))
        yield next(messages)
        yield next(messages)
        await held.wait()

    with monkeypatch.context() as patched:
        patched.setattr(servicer, "UPDATE_SECONDS", 0.2)
        patched.setattr(servicer, "_DRAIN_SECONDS", 0.1)
        assert await refused(bench.stub.SubmitUpdate(half(), timeout=60.0)) == "UPDATE_TOO_SLOW"
    held.set()
    assert not federation.intake.in_flight
    assert not federation.core.answers
    await bench.submit(asked["a"], vector_of("a", 1))
    assert len(federation.core.answers) == 1


async def _fails_in_its_second_tensor(bench, federation, assignment, vector, how, tensors):
    """After the first tensor was read whole."""
    first = 4 * federation.schema.joined[0].size
    if how == "not finite":
        bad = vector.copy()
        bad[-1] = np.nan
        assert await refused(bench.submit(assignment, bad, chunk=first, tensors=tensors)) == "NOT_FINITE"
        return

    async def half():
        messages = update_messages(assignment, vector, chunk=first, tensors=tensors)
        yield next(messages)
        yield next(messages)
        await asyncio.sleep(60.0)

    call = bench.stub.SubmitUpdate(half(), timeout=60.0)
    await bench.until(lambda: federation.intake.in_flight == 1)
    call.cancel()
    await bench.until(lambda: not federation.intake.in_flight)


async def _digest_of_a_round(folder, how=""):
    async with serving(folder) as bench:
        federation = await bench.start(task="synthetic", settings={}, rounds=1)
        schema = federation.schema
        assert len(schema.joined) > 1
        tensors = [
            tensor_pb2.Tensor(name=each.name, dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=each.shape)
            for each in schema.joined
        ]
        rngs = {node: np.random.default_rng(ord(node)) for node in "abc"}
        vectors = {node: rng.standard_normal(schema.size).astype(np.float32) for node, rng in rngs.items()}
        asked = await bench.assignments(federation, 1)
        await bench.submit(asked["b"], vectors["b"], chunk=1 << 14, tensors=tensors)
        if how:
            model = federation.model.digest
            await _fails_in_its_second_tensor(bench, federation, asked["a"], vectors["a"] * 3, how, tensors)
            assert federation.model.digest == model
            assert [update.refusal for update in federation.core.history[-1].updates if update.node_id == "a"]
        for node in "ac":
            await bench.submit(asked[node], vectors[node], chunk=1 << 14, tensors=tensors)
        await bench.until(lambda: federation.core.state is FederationState.FINISHED)
        return federation.core.digest


@pytest.mark.parametrize("how", ["breaks off", "not finite"])
async def test_an_update_that_fails_in_its_second_tensor_changes_no_bit_of_the_model(tmp_path, how):
    assert await _digest_of_a_round(tmp_path / "disturbed", how) == await _digest_of_a_round(tmp_path / "undisturbed")


async def test_compressed_updates_are_unpacked_before_they_are_joined(bench):
    federation = await bench.start(nodes=("a",), rounds=1, compression={"encoding": "top_k", "ratio": 0.1})
    asked = await bench.assignments(federation, 1)
    vector = vector_of("a", 1)
    packed = encode(vector, "top_k", 0.1)
    await bench.submit(asked["a"], vector, encoded=packed, encoding=pb.UPDATE_ENCODING_TOP_K)
    await bench.until(lambda: federation.core.state is FederationState.FINISHED)
    _, tensors = await download(bench.stub)
    kept = np.argsort(-np.abs(vector))[:2]
    wanted = np.zeros(SIZE, np.float32)
    wanted[kept] = vector[kept]
    assert np.array_equal(tensors["weight"], wanted)


async def test_impossible_federations_are_refused_and_leave_nothing_behind(bench, tmp_path):
    for values in (
        {"rule": {"name": "krum"}, "quorum": 4, "selection": {"min_nodes": 4}},
        {"task": "unknown"},
        {"settings": {"parameters": 0}},
        {"rounds": 0},
        {"unknown": 1},
    ):
        with pytest.raises(Exception, match=r"Krum|not installed|parameters|rounds|unknown"):
            await bench.start(**values)
    assert not list((tmp_path / "federations").glob("*"))
    await bench.start()
    with pytest.raises(Exception, match="another configuration"):
        await bench.start(rounds=5)


async def finish(bench, federation):
    """Nodes whose updates depend on node and version alone."""
    core = federation.core
    async with asyncio.timeout(60.0):
        while core.state is FederationState.RUNNING:
            for node, assignment in list(core.assignments.items()):
                if assignment.nonce not in core.answers and core.phase == "collecting":
                    await bench.submit(assignment, vector_of(node, assignment.base_version))
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("server", ["fedavg", "fedadam"])
async def test_a_kill_between_any_two_writes_ends_in_the_same_model(tmp_path, server):
    snapshots: list[Path] = []
    private = {"mode": "central", "clip_norm": 2.0}
    values = {"rounds": 2, "server": {"optimiser": server, "learning_rate": 0.5}, "privacy": private}
    async with serving(tmp_path / "whole") as bench:
        federation = await bench.start(**values)
        append = federation._journal.append

        def copying(event, line):
            copy = tmp_path / f"before-{len(snapshots)}"
            # What a thread is just writing has no name yet.
            shutil.copytree(tmp_path / "whole", copy, ignore=shutil.ignore_patterns("*.partial"))
            snapshots.append(copy)
            append(event, line)

        federation._journal.append = copying
        await finish(bench, federation)
        digest = federation.core.digest
        weights = [[u.node_weight for u in record.updates] for record in federation.core.history]
    assert len(snapshots) >= 10
    for copy in snapshots:
        async with serving(copy) as bench:
            resumed = bench.federations.get("f")

            async def list_nodes(_):
                return NodesFound(("a", "b", "c"))

            resumed._search.list_nodes = list_nodes
            await finish(bench, resumed)
            assert resumed.core.digest == digest
            assert [[u.node_weight for u in record.updates] for record in resumed.core.history] == weights


async def test_an_update_that_comes_while_its_round_is_resumed_is_joined_once(tmp_path, monkeypatch):
    async with serving(tmp_path / "f") as bench:
        federation = await bench.start(rounds=1)
        asked = await bench.assignments(federation, 1)
        for node in "ab":
            await bench.submit(asked[node], vector_of(node, 1))
    resuming, joined = threading.Event(), []
    damaged, aggregate = Federation._damaged, Aggregator.aggregate

    def slow(self):
        resuming.wait(60.0)
        return damaged(self)

    def counted(self, base, number, updates):
        joined.append(number)
        return aggregate(self, base, number, updates)

    monkeypatch.setattr(Federation, "_damaged", slow)
    monkeypatch.setattr(Aggregator, "aggregate", counted)
    async with serving(tmp_path / "f") as bench:
        federation = bench.federations.get("f")
        last = asyncio.ensure_future(bench.submit(asked["c"], vector_of("c", 1)))
        await asyncio.wait({last}, timeout=0.2)
        resuming.set()
        await last
        await bench.until(lambda: federation.core.state is FederationState.FINISHED)
    assert joined == [1]


async def test_an_update_that_a_power_cut_damaged_is_asked_for_again(tmp_path):
    async with serving(tmp_path / "f") as bench:
        federation = await bench.start()
        asked = await bench.assignments(federation, 1)
        await bench.submit(asked["a"], vector_of("a", 1))
    with (tmp_path / "f" / "f" / "updates.bin").open("r+b") as spool:
        spool.write(b"\x00\x01")
    with (tmp_path / "f" / "f" / "journal.jsonl").open("ab") as journal:
        journal.write(b'00000000 ["Deliv')
    async with serving(tmp_path / "f") as bench:
        federation = bench.federations.get("f")
        await bench.until(lambda: not federation.core.answers)
        await bench.submit(asked["a"], vector_of("a", 1))
        assert len(federation.core.answers) == 1


async def test_a_stop_lets_the_round_in_hand_end(bench):
    federation = await bench.start(rounds=5)
    asked = await bench.assignments(federation, 1)
    await bench.stub.StopFederation(pb.StopFederationRequest(), timeout=60.0)
    for node, assignment in asked.items():
        await bench.submit(assignment, vector_of(node, 1))
    await bench.until(lambda: federation.core.state is FederationState.STOPPED)
    assert federation.core.aggregated == 1


async def test_a_privacy_budget_ends_the_federation(bench):
    private = {"mode": "central", "clip_norm": 1.0, "noise_multiplier": 3.0, "epsilon_budget": 6.0}
    federation = await bench.start(rounds=50, privacy=private)
    await finish(bench, federation)
    await bench.until(lambda: federation.core.state is not FederationState.RUNNING)
    assert federation.core.state is FederationState.STOPPED
    assert "budget of epsilon 6" in federation.core.reason
    spent = [record.metrics["privacy/epsilon"] for record in federation.core.history]
    assert spent == sorted(spent)
    assert spent[-1] <= 6.0
    assert federation.core.aggregated == releases_within(3.0, 1e-5, 6.0, 50) > 1


async def test_what_single_nodes_sent_is_not_shown_in_a_private_federation(bench):
    private = {"mode": "central", "clip_norm": 1.0, "noise_multiplier": 3.0}
    federation = await bench.start(rounds=1, privacy=private, evaluation={"interval_rounds": 1})
    asked = await bench.assignments(federation, 1)
    metrics = struct_to_proto({"loss": 0.25})
    for number, (node, assignment) in enumerate(asked.items()):
        # Not finite, far away, or without samples: nobody may see a difference.
        vector = [np.full(SIZE, np.nan), 1e6 * vector_of(node, 1), vector_of(node, 1)][number]
        await bench.submit(assignment, vector, samples=[7, 10**12, 0][number], metrics=metrics)
    await bench.until(lambda: federation.core.state is FederationState.FINISHED)
    (found,) = (await bench.stub.ListRounds(pb.ListRoundsRequest(), timeout=60.0)).rounds
    shown = {MessageToJson(pb.UpdateRecord(**{**fields(update), "node_id": ""})) for update in found.updates}
    assert len(shown) == 1
    assert [(u.samples, u.norm, u.counted_samples, list(u.notes), u.refusal) for u in found.updates] == [
        (0, 0.0, 0, [], "")
    ] * 3
    assert not [name for name in found.metrics if name.startswith(("fit/", "evaluation/"))]
    _, tensors = await download(bench.stub)
    assert np.isfinite(tensors["weight"]).all()


def fields(message):
    return {field.name: value for field, value in message.ListFields()}
