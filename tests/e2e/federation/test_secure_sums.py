"""Secure rounds over real processes: nodes are killed, and the learner's memory, files and log are searched."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parlmesh.federation.model_file import read_model
from parlmesh.federation.secure.fixed_point import FixedPoint
from parlmesh.rpc import open_channel
from parlmesh.testing import Process, wait_until
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.v1.federation_service_pb2_grpc import FederationServiceStub
from parlmesh.wire import struct_to_proto

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SIZE = 3_000
TASK = '''
import os, time
import numpy as np
from parlmesh.federation.learning_task import FirstModel, Fitted, Evaluated

class Known:
    """Node k moves by numbers that only it and the test know; those of the host `gone` never come to an end."""
    def __init__(self, settings):
        pass
    def first(self, seed):
        return FirstModel({"weight": np.zeros(3000, np.float32)})
    def fit(self, tensors, part):
        open(os.environ["KNOWN_FOLDER"] + "/" + part.node_id, "w").close()
        while part.node_id.startswith("gone"):
            time.sleep(0.02)
            part.check()
        move = np.random.default_rng([77, part.number]).uniform(-1, 1, 3000).astype(np.float32)
        return Fitted({"weight": tensors["weight"] + move}, 10 * part.number)
    def evaluate(self, tensors, part):
        return Evaluated(0, {})
'''


def moved(number: int) -> Any:
    return np.random.default_rng([77, number]).uniform(-1, 1, SIZE).astype(np.float32)


def patterns(number: int) -> list[bytes]:
    """Stretches of a node's update, plain and in fixed point: any of them would reveal it."""
    vector = moved(number)
    words = FixedPoint(10, 1.0, 100).words(vector, 10 * number)
    starts = (1, SIZE // 2, SIZE - 8)
    return [form[start : start + 4].tobytes() for form in (vector, words) for start in starts]


def memory_of(process: Process) -> bytes:
    """All writable memory of the process, without pages that it never wrote to."""
    found = []
    with open(f"/proc/{process.pid}/maps") as maps, open(f"/proc/{process.pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            where, rights = line.split()[:2]
            start, stop = (int(part, 16) for part in where.split("-"))
            if rights.startswith("rw") and not line.rstrip().endswith(("[vvar]", "[vsyscall]")):
                memory.seek(start)
                try:
                    pages = np.frombuffer(memory.read(stop - start), np.uint64).reshape(-1, 512)
                except OSError:
                    continue
                found.append(pages[pages.any(axis=1)].tobytes())
    return b"".join(found)


def holds_any(found: bytes, wanted: list[bytes]) -> bool:
    """Whether one of many short patterns occurs; `in` would read everything once per pattern."""
    known = set(wanted)
    first = np.zeros(1 << 16, bool)
    first[[int.from_bytes(pattern[:2], "little") for pattern in known]] = True
    for shift in (0, 1):
        pairs = np.frombuffer(found, "<u2", (len(found) - shift) // 2, offset=shift)
        if any(found[at : at + 16] in known for at in (2 * np.flatnonzero(first[pairs]) + shift).tolist()):
            return True
    return False


def files_in(folder: Path) -> bytes:
    return b"\0".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_a_killed_host_costs_only_its_nodes_and_the_learner_never_sees_a_single_update(fleet, tmp_path, monkeypatch):
    code, marks = tmp_path / "code", tmp_path / "marks"
    code.mkdir()
    marks.mkdir()
    (code / "known.py").write_text(TASK)
    monkeypatch.setenv("PYTHONPATH", str(code), prepend=":")
    monkeypatch.setenv("KNOWN_FOLDER", str(marks))
    installed = json.dumps({"known": "known:Known"})
    scheduler = fleet.scheduler()
    learner = fleet.learner(**{"mode": "federation", "federations.learning_tasks": installed})
    kinds = '["federated_fit","federated_mask"]'
    common = {"learning_tasks": installed, "kinds": kinds, "privacy.min_summed_nodes": 5}
    fleet.actor(0, **{**common, "actor_id": "stays", "node_id": "stays", "virtual_nodes": 7})
    gone = fleet.actor(1, **{**common, "actor_id": "gone", "node_id": "gone", "virtual_nodes": 3})
    configuration = {
        "task": "known",
        "rounds": 1,
        "quorum": 3,
        "round_seconds": 2.5,
        "selection": {"min_nodes": 10, "virtual_nodes": 7, "virtual_voters": True},
        "secure": {"enabled": True, "largest_value": 1.0},
        "gate": {"max_samples": 100},
        "evaluation": {"interval_rounds": 0},
    }

    async def call(method: str, request: Any) -> Any:
        async with open_channel(fleet.learner_address) as channel:
            return await getattr(FederationServiceStub(channel), method)(request, timeout=30.0)

    asked = pb.StartFederationRequest(federation_id="hidden-sum", configuration=struct_to_proto(configuration))
    asyncio.run(call("StartFederation", asked))
    spool = fleet.run_dir / "federations" / "hidden-sum" / "updates.bin"
    # Seven masked updates have arrived, and the three missing nodes have begun.
    wait_until(lambda: spool.exists() and spool.stat().st_size == 7 * 4 * (SIZE + 1), 60.0)
    wait_until(lambda: (marks / "gone#0").exists(), 60.0)
    during = memory_of(learner) + files_in(fleet.folder / "run") + memory_of(scheduler)
    gone.kill()

    def ended() -> bool:
        found = asyncio.run(call("GetFederation", pb.GetFederationRequest())).federation
        return bool(found.state != pb.FEDERATION_STATE_RUNNING)

    wait_until(ended, 30.0, poll_seconds=0.1)
    (round_,) = asyncio.run(call("ListRounds", pb.ListRoundsRequest())).rounds
    assert round_.state == pb.ROUND_STATE_AGGREGATED, round_
    assert {update.node_id for update in round_.updates if not update.refusal} == {f"stays#{k}" for k in range(7)}
    assert {update.node_id for update in round_.updates if update.refusal} == {f"gone#{k}" for k in range(3)}

    # Nodes are numbered in the order of their names: the three that were killed are 1 to 3.
    rest = range(4, 11)
    expected = sum(number * moved(number).astype(np.float64) for number in rest) / sum(rest)
    path = fleet.run_dir / "federations" / "hidden-sum" / "models" / "v00000002.safetensors"
    weights = read_model(memoryview(path.read_bytes())).tensors["weight"]
    assert np.abs(weights - expected).max() <= round_.metrics["secure/error"] + 1e-7

    log = "\n".join([*learner.lines, *scheduler.lines]).encode()
    after = memory_of(learner) + memory_of(scheduler) + files_in(fleet.folder) + log
    # The search works: it finds the federation's name in memory and the sum in the model's file.
    assert b"hidden-sum" in during
    assert holds_any(after, [weights[100:104].tobytes()])
    single = [pattern for number in rest for pattern in patterns(number)]
    assert not holds_any(during, single)
    assert not holds_any(after, single)
