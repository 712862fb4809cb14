import asyncio

import grpc.aio
import numpy as np
import pytest

from learner.federation.rules import events
from learner.federation.rules.records import FederationState
from learner.federation.updates.update_stream import UpdateStream
from parlmesh.errors import InvalidInput, Unavailable
from parlmesh.rpc import error_from_rpc, error_from_status
from parlmesh.security import ANYONE
from parlmesh.v1 import federation_service_pb2 as pb

from ..conftest import SIZE, update_messages

ONES = np.ones(SIZE, np.float32)


def parts(assignment, vector=ONES, **changes):
    return list(update_messages(assignment, vector, chunk=40, **changes))


async def read(call, count):
    found: list[str | int] = []
    while len(found) < count:
        answer = await call.read()
        found += [(error_from_status(r.status).reason if r.HasField("status") else r.round) for r in answer.receipts]
    return found


async def test_updates_on_one_stream_are_answered_in_turn_and_a_refused_one_does_not_end_it(bench):
    federation = await bench.start(rounds=1)
    asked = await bench.assignments(federation, 1)
    call = bench.stub.SubmitUpdates(timeout=60.0)
    # Chunk by chunk; then a refused one, whose data still follows, and a good one in one message.
    for part in parts(asked["a"]):
        await call.write(pb.SubmitUpdatesRequest(parts=[part]))
    together = [*parts(asked["b"], samples=0), *parts(asked["b"], 2 * ONES)]
    await call.write(pb.SubmitUpdatesRequest(parts=together))
    assert await read(call, 3) == [1, "NO_SAMPLES", 1]
    # The same again counts once; another one of the same node is refused.
    await call.write(pb.SubmitUpdatesRequest(parts=[*parts(asked["a"]), *parts(asked["a"], 5 * ONES)]))
    assert await read(call, 2) == [1, "ANSWERED_TWICE"]
    await call.write(pb.SubmitUpdatesRequest(parts=parts(asked["c"], 3 * ONES, federation_id="other")))
    await call.write(pb.SubmitUpdatesRequest(parts=parts(asked["c"], 3 * ONES)))
    assert await read(call, 2) == ["UNKNOWN_FEDERATION", 1]
    await bench.until(lambda: federation.core.state is FederationState.FINISHED)
    (record,) = federation.core.history
    assert [(u.node_id, u.refusal) for u in record.updates] == [
        ("b", "NO_SAMPLES"),
        ("a", "ANSWERED_TWICE"),
        ("a", ""),
        ("b", ""),
        ("c", ""),
    ]
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


@pytest.mark.parametrize("place", [0, 1, 4])
@pytest.mark.parametrize("names", ["abcde", ["h#0", "h#1", "h#2", "h#3", "h#4"], ["g", "h#0", "h#1", "h#2", "k"]])
async def test_numbers_that_are_not_finite_count_against_their_own_sender_and_nobody_else_of_the_message(
    bench, names, place
):
    federation = await bench.start(nodes=tuple(names), rounds=2, gate={"max_strikes": 1})
    asked = await bench.assignments(federation, 1)
    bad, others = names[place], {*names} - {names[place]}
    sent = [part for name in names for part in parts(asked[name], ONES * (np.nan if name == bad else 1.0))]
    call = bench.stub.SubmitUpdates(timeout=60.0)
    await call.write(pb.SubmitUpdatesRequest(parts=sent))
    assert await read(call, 5) == ["NOT_FINITE" if name == bad else 1 for name in names]
    assert {answer.node_id for answer in federation.core.answers.values()} == others
    federation.core.handle(events.TaskFailed(bad, 1, "refused", asked[bad].nonce), 0.0)
    assert {each.node_id for each in federation.core.counted} == others
    assert set(federation.core.eligibility.able(tuple(names), 2)) == others
    call.cancel()


async def test_an_update_that_another_one_cuts_short_is_refused(bench):
    federation = await bench.start()
    asked = await bench.assignments(federation, 1)
    call = bench.stub.SubmitUpdates(timeout=60.0)
    await call.write(pb.SubmitUpdatesRequest(parts=[*parts(asked["a"])[:-1], *parts(asked["b"])]))
    assert await read(call, 2) == ["UPDATE_INCOMPLETE", 1]
    await call.write(pb.SubmitUpdatesRequest(parts=parts(asked["c"])[:-1]))
    await bench.until(lambda: federation.intake.in_flight == 1)
    call.cancel()
    await bench.until(lambda: not federation.intake.in_flight)
    found = [(update.node_id, update.refusal) for update in federation.core.history[-1].updates]
    assert found == [("a", "UPDATE_INCOMPLETE"), ("c", "UPDATE_INCOMPLETE")]
    assert [answer.node_id for answer in federation.core.answers.values()] == ["b"]


async def test_a_schema_that_is_the_models_may_be_named_by_its_digest(bench):
    federation = await bench.start()
    asked = await bench.assignments(federation, 1)
    call = bench.stub.SubmitUpdates(timeout=60.0)
    right, wrong = federation.schema.digest, bytes(32)
    for digest in (wrong, right):
        content = parts(asked["a"], tensors=[], schema_digest=digest)
        await call.write(pb.SubmitUpdatesRequest(parts=content))
    assert await read(call, 2) == ["UPDATE_SCHEMA", 1]


async def test_an_update_that_meets_a_stopping_learner_is_not_refused_but_sent_away(bench):
    federation = await bench.start()
    asked = await bench.assignments(federation, 1)
    federation.intake.close()
    call = bench.stub.SubmitUpdates(timeout=60.0)
    await call.write(pb.SubmitUpdatesRequest(parts=parts(asked["a"])))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert isinstance(error_from_rpc(caught.value), Unavailable)
    assert not federation.core.history[-1].updates


async def test_a_message_of_many_headers_leaves_others_their_turn(bench):
    """Empty headers cost their sender 4 bytes each, and each is refused and written down."""
    await bench.start()
    stream = UpdateStream(bench.federations, ANYONE)
    message = pb.SubmitUpdatesRequest(parts=[pb.SubmitUpdateRequest(header=pb.UpdateHeader())] * 4_096)
    taking = asyncio.ensure_future(stream.take(message.SerializeToString()))
    turns = 0
    while not taking.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(taking.result()) == 4_096
    assert turns >= 256
    message.parts.add()
    with pytest.raises(InvalidInput, match="parts has 4097 entries; it must have 0 to 4096"):
        await stream.take(message.SerializeToString())
