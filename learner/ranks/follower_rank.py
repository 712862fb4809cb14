"""Every rank but the first: it holds a part of the batch and computes gradients on request. Decides nothing."""

import os
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from parlmesh.algorithm_choice import model_for
from parlmesh.plugins import load_plugins
from parlmesh.policies import PolicySpec
from parlmesh.telemetry import get_logger
from parlmesh.training.continuous.sac_model import SacModel
from parlmesh.training.numpy_model import Memory, Minibatch, Model, Steps
from parlmesh.training.numpy_q_model import QModel
from parlmesh.training.replay_trainer import Minibatch as QMinibatch
from parlmesh.training.settings.run import TrainingConfig
from parlmesh.types import Array

from .collectives import Group, RankLost
from .gradient_share import WeightedShare

log = get_logger("parlmesh.learner")

# Columns of a minibatch that are sent with every step.
COLUMNS = (
    "actions",
    "log_probs",
    "advantages",
    "returns",
    "masks",
    "values",
    "weights",
    "target_actions",
    "target_chances",
    "valid",
)

Arrays = Mapping[str, Array]


class Rank:
    """A rank that runs as long as its group."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._share = WeightedShare(group)
        self._model: Any = None
        self._held: dict[str, Array] = {}

    def serve(self) -> None:
        """Obeys rank 0 until it ends the group."""
        orders: dict[str, Callable[[Mapping[str, Any], Arrays], dict[str, Array] | None]] = {
            "model": self._build,
            "restore": lambda order, arrays: self._model.restore(arrays),
            "agree": lambda order, arrays: {"digest": digest(self._model)},
            "hold": self._hold,
            "step": self._step,
            "q_step": self._q_step,
            "sac_step": self._sac_step,
            "follow": lambda order, arrays: self._model.follow(order["rate"]),
        }
        while True:
            order, arrays = self._group.receive(0)
            if order["do"] == "end":
                return
            answer = orders[order["do"]](order, arrays)
            if answer is not None:
                self._group.send(0, {}, answer)

    def _build(self, order: Mapping[str, Any], arrays: Arrays) -> None:
        load_plugins(order["plugins"])
        config = TrainingConfig.model_validate(order["training"])
        policy = PolicySpec.from_json(order["policy"])
        self._model = model_for(config, policy, np.random.default_rng(0), order["max_policy_lag"])
        self._model.share = self._share

    def _hold(self, order: Mapping[str, Any], arrays: Arrays) -> dict[str, Array]:
        """Keeps the features of this rank's environments for the steps of an update; returns the model's outputs."""
        model: Model = self._model
        self._held = dict(arrays)
        features, memory = arrays["features"], memory_of(arrays)
        if not order["judged"]:
            return {"values": model.values(features, memory)}
        batch = Minibatch(features=features[:-1], **columns_of(arrays))
        if memory is not None:
            batch = batch._replace(memory=Memory(memory.starts[:-1], memory.state))
        values, log_probs = model.judged(features, memory, batch)
        return {"values": values, "log_probs": log_probs}

    def _step(self, order: Mapping[str, Any], arrays: Arrays) -> None:
        model: Model = self._model
        self._share.weight = order["weight"]
        features, chosen, memory = self._held["features"][:-1], arrays["chosen"], memory_of(self._held)
        if memory is None:
            seen = features.reshape(-1, *features.shape[2:])[chosen]
            minibatch = Minibatch(features=seen, **columns_of(arrays))
        else:
            minibatch = Minibatch(features=features[:, chosen], **columns_of(arrays))
            minibatch = minibatch._replace(memory=Memory(memory.starts[:-1, chosen], memory.state[chosen]))
        model.step(minibatch, Steps(*order["steps"]))

    def _q_step(self, order: Mapping[str, Any], arrays: Arrays) -> None:
        model: QModel = self._model
        share, count = self._share, order["count"]
        share.weight, share.first, share.count = len(arrays["actions"]) / count, order["first"], count
        model.step(QMinibatch(**arrays), order["learning_rate"])

    def _sac_step(self, order: Mapping[str, Any], arrays: Arrays) -> None:
        model: SacModel = self._model
        share, count, rows = self._share, order["count"], dict(arrays)
        noise = rows.pop("noise")
        share.weight, share.first, share.count = len(rows["returns"]) / count, order["first"], count
        model.step(QMinibatch(**rows), order["learning_rate"], noise)


def obey(group: Group) -> int:
    """Runs a rank other than 0 and returns its exit code. It logs little, and to standard error."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    try:
        Rank(group).serve()
    except RankLost as error:
        log.error("rank_left", rank=group.rank, reason=str(error))
        return 1
    return 0


def memory_of(arrays: Arrays) -> Memory | None:
    """The memory that was sent with the features, if any."""
    return Memory(arrays["starts"], arrays["state"]) if "state" in arrays else None


def columns_of(arrays: Arrays) -> dict[str, Any]:
    """All columns of a minibatch except its features."""
    return {name: arrays[name] for name in COLUMNS if name in arrays}


def digest(model: Model | QModel) -> Array:
    """Digest of everything that decides the model's next step."""
    found = 0
    for name, array in sorted(model.tensors().items()):
        found = zlib.crc32(np.ascontiguousarray(array).tobytes(), zlib.crc32(name.encode(), found))
    return np.array([found], np.int64)
