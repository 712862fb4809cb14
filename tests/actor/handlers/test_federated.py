import asyncio
import re

import numpy as np
import pytest

from actor.config import PrivacyFloorConfig
from actor.federation.federation_client import FederationLink
from actor.federation.local_nodes import LearningTasks, Participants
from actor.federation.privacy_floor import PrivacyFloor
from actor.federation.update_uploads import Receipt
from actor.handlers.federated import FederatedEvaluate, FederatedFit
from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.federation.compression import decode
from parlmesh.federation.learning_task import Evaluated, Fitted
from parlmesh.federation.model_file import ModelFile
from parlmesh.federation.privacy import releases_within
from parlmesh.federation.schema import ModelSchema
from parlmesh.handlers import Cancelled, Context

BASE = {"weight": np.arange(6, dtype=np.float32)}


class Link(FederationLink):
    """Has one model and takes every update but those of the node "n#2"."""

    def __init__(self):
        self.sent = []

    def model(self, federation_id, version, context):
        return ModelFile(ModelSchema.of(BASE), BASE, {})

    async def submit(self, updates):
        self.sent += updates
        refused = InvalidInput("no", reason="NORM")
        return [Receipt(1, refused if update.header.node_id == "n#2" else None) for update in updates]


class Tasks(LearningTasks):
    """Each node adds its number; the node "n#1" fails."""

    def __init__(self):
        self.fits = 0

    def get(self, name, settings):
        return self

    def fit(self, tensors, part):
        self.fits += 1
        if part.node_id == "n#1":
            raise RuntimeError("no data")
        return Fitted({"weight": tensors["weight"] + part.number}, 10 * part.number)

    def evaluate(self, tensors, part):
        return Evaluated(part.number, {"mean": float(tensors["weight"].mean())})


def made(count=4):
    return Participants([f"n#{index}" for index in range(count)], Link(), Tasks())


def context():
    return Context(task_id="t", attempt=1, actor_id="a", slot=0)


def fit_parameters(nodes, **changes):
    members = [{"node_id": f"n#{k}", "number": k + 1, "nonce": f"{k:04x}"} for k in nodes]
    values = {"federation_id": "f", "task": "x", "round": 3, "base_version": 2, "members": members}
    return {**values, **changes}


async def ended(tail):
    return await tail.wait()


def fit(participants, nodes, **changes):
    tail = FederatedFit(participants).run(fit_parameters(nodes, **changes), {}, context())
    return asyncio.run(ended(tail)).parameters


def test_each_node_of_a_task_sends_its_own_update():
    participants = made()
    assert fit(participants, [0, 3]) == {"sent": 2}
    for update, number in zip(participants.link.sent, (1, 4), strict=True):
        assert (update.header.node_id, update.header.samples) == (f"n#{number - 1}", 10 * number)
        assert (update.header.round, update.header.base_version) == (3, 2)
        assert update.header.nonce == (number - 1).to_bytes(2)
        assert np.array_equal(decode(bytes(update.data), 6, "none"), np.full(6, number, np.float32))


def test_a_node_that_fails_or_is_refused_does_not_keep_the_others_from_sending():
    participants = made()
    result = fit(participants, [0, 1, 2, 3])
    assert (result["sent"], result["failed"]["n#2"]) == (3, "refused: NORM")
    assert re.fullmatch(r"RuntimeError: no data \(.*test_federated\.py:\d+\)", result["failed"]["n#1"])


def test_an_attempt_in_which_all_nodes_fail_has_failed():
    with pytest.raises(RuntimeError, match="no data"):
        fit(made(), [1])


def test_nodes_that_are_not_here_are_refused_by_name():
    with pytest.raises(InvalidInput, match="n#9"):
        fit(made(), [0, 9])
    with pytest.raises(InvalidInput, match="n#9"):
        FederatedEvaluate(made()).run(
            {"federation_id": "f", "task": "x", "version": 2, "members": [{"node_id": "n#9", "number": 1}]},
            {},
            context(),
        )


def test_a_cancelled_task_trains_no_further_node():
    participants, stopped = made(), context()
    stopped.cancelled = True
    with pytest.raises(Cancelled):
        FederatedFit(participants).run(fit_parameters([0, 3]), {}, stopped)
    assert participants.tasks.fits == 0


def test_a_compressed_update_is_sent_again_as_it_was_and_not_made_anew():
    participants = made()
    for _ in range(2):
        fit(participants, [0], encoding="top_k", ratio=0.5)
    first, second = participants.link.sent
    assert (first.data, first.header) == (second.data, second.header)
    assert participants.tasks.fits == 1


def test_what_a_refused_or_late_update_left_out_is_not_in_the_next():
    def sent(participants, node, nonces, lost=()):
        for nonce in nonces:
            members = [{"node_id": f"n#{node}", "number": node + 1, "nonce": nonce}]
            changes = {"members": members, "encoding": "top_k", "ratio": 0.5}
            tail = FederatedFit(participants).run(fit_parameters([node], **changes), {}, context())
            if nonce not in lost:
                asyncio.run(ended(tail))
        return [bytes(update.data) for update in participants.link.sent]

    # Three of six numbers are sent at a time; of what was taken the rest comes next.
    first, second = sent(made(), 0, ["00", "01"])
    assert first != second
    # The node "n#2" is refused: its next update is as if there had been no other.
    first, second = sent(made(), 2, ["00", "01"])
    assert first == second
    # So it is when no receipt ever came.
    (only,) = sent(made(), 0, ["00", "01"], lost=["00"])
    assert only == sent(made(), 0, ["01"])[0]


def test_each_node_of_a_task_judges_for_itself():
    members = [{"node_id": "n#0", "number": 1}, {"node_id": "n#3", "number": 4}]
    values = {"federation_id": "f", "task": "x", "version": 2, "members": members}
    found = FederatedEvaluate(made()).run(values, {}, context()).parameters
    assert found == {
        "judged": {"n#0": {"samples": 1, "metrics": {"mean": 2.5}}, "n#3": {"samples": 4, "metrics": {"mean": 2.5}}}
    }


def test_a_private_node_says_nothing_besides_its_noisy_update_and_sends_it_again_as_it_was():
    participants = made()
    for _ in range(2):
        fit(participants, [0, 3], clip_norm=1.0, noise_multiplier=2.0)
    first, other, again, _ = participants.link.sent
    for update in (first, other):
        assert (update.header.samples, dict(update.header.metrics)) == (1, {})
    assert (first.data, first.header.digest) == (again.data, again.header.digest)
    assert participants.tasks.fits == 2


def test_a_node_with_a_floor_sends_and_judges_nothing_below_it(tmp_path):
    config = PrivacyFloorConfig(min_noise_multiplier=3.0, epsilon_budget=6.0, ledger=tmp_path / "ledger.json")
    link = Link()
    participants = Participants(["n#0", "n#3"], link, Tasks(), PrivacyFloor(config))
    for asked in ({}, {"clip_norm": 1.0}, {"clip_norm": 1.0, "noise_multiplier": 2.9}):
        with pytest.raises(FailedPrecondition, match="sends updates"):
            fit(participants, [0], **asked)
    with pytest.raises(InvalidInput, match="noise_multiplier needs a clip_norm"):
        fit(participants, [0], noise_multiplier=3.0)
    members = [{"node_id": "n#0", "number": 1}]
    with pytest.raises(FailedPrecondition, match="evaluates no models"):
        FederatedEvaluate(participants).run(
            {"federation_id": "f", "task": "x", "version": 2, "members": members}, {}, context()
        )
    assert not link.sent
    enough = {"clip_norm": 1.0, "noise_multiplier": 3.0}
    for number in range(releases_within(3.0, 1e-5, 6.0, 99)):
        members = [{"node_id": "n#0", "number": 1, "nonce": f"{number:04x}"}]
        assert fit(participants, [0], members=members, **enough) == {"sent": 1}
        # The same once more gives nothing away.
        assert fit(participants, [0], members=members, **enough) == {"sent": 1}
    with pytest.raises(FailedPrecondition, match="its budget is 6"):
        fit(participants, [0], members=[{"node_id": "n#0", "number": 1, "nonce": "ffff"}], **enough)
