"""Models whose gradient steps are shared by several ranks; to a trainer they are like any other model.

The trainer runs on rank 0 alone, so its decisions (the order of steps, when to stop, what to undo) need no agreement.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from parlmesh.algorithms.ppo import PpoTerms
from parlmesh.errors import Unavailable
from parlmesh.telemetry import get_logger
from parlmesh.training.continuous.sac_model import SacModel
from parlmesh.training.numpy_model import Memory, Minibatch, Model, Steps
from parlmesh.training.numpy_q_model import QModel, QStep
from parlmesh.training.replay_trainer import Learnt
from parlmesh.training.replay_trainer import Minibatch as QMinibatch
from parlmesh.types import Array

from .collectives import Group, RankLost
from .follower_rank import COLUMNS, digest
from .gradient_share import WeightedShare
from .rank_processes import Members

log = get_logger("parlmesh.learner")
T = TypeVar("T")

# Losses in a row, with no success between them, after which the run fails.
_MOST_STARTS = 4


class _Ranked:
    """Keeps the ranks equal to the model here. A step in which a rank was lost has changed nothing here and is repeated
    with new ranks, so that a loss costs only their start."""

    # Unused here: the wrapped model's share sums over the ranks.
    share = None

    def __init__(self, model: Any, members: Members, order: Mapping[str, Any], lost: Callable[[], None]) -> None:
        """`order` makes the ranks build the same model; `lost` counts losses."""
        self._own = model
        self._members = members
        self._order = {"do": "model", **order}
        self._lost = lost
        self._group: Group | None = None
        self._sharing: WeightedShare | None = None
        self._failures = 0

    def policy_weights(self) -> dict[str, Array]:
        """A copy of the policy's part."""
        weights: dict[str, Array] = self._own.policy_weights()
        return weights

    def tensors(self) -> dict[str, Array]:
        """The tensors of rank 0, once all ranks have the same ones: every update starts with this."""
        if self._group is not None:
            self._until_done(self._agree)
        tensors: dict[str, Array] = self._own.tensors()
        return tensors

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """Restores the tensors on all ranks."""
        self._own.restore(tensors)
        if self._group is not None:
            self._until_done(lambda group: self._tell(group, {"do": "restore"}, self._own.tensors()))

    def _agree(self, group: Group) -> None:
        self._tell(group, {"do": "agree"})
        wanted = int(digest(self._own)[0])
        for rank in range(1, group.size):
            found = int(group.receive(rank)[1]["digest"][0])
            if found != wanted:
                # Processors of different kinds round differently.
                log.warning("ranks_differed", rank=rank)
                group.send(rank, {"do": "restore"}, self._own.tensors())

    def _until_done(self, act: Callable[[Group], T]) -> T:
        while True:
            try:
                group = self._group or self._joined()
                done = act(group)
            except RankLost as error:
                self._group = None
                self._failures += 1
                self._lost()
                log.warning("rank_lost", reason=str(error), in_a_row=self._failures)
                if self._failures >= _MOST_STARTS:
                    why = f"ranks were lost {self._failures} times in a row, the last time because: {error}"
                    raise Unavailable(why, reason="RANKS_LOST") from error
            else:
                self._failures = 0
                return done

    def _joined(self) -> Group:
        group = self._members.joined()
        self._own.share = self._sharing = WeightedShare(group)
        self._tell(group, self._order)
        self._tell(group, {"do": "restore"}, self._own.tensors())
        self._equip(group)
        self._group = group
        log.info("ranks_joined", ranks=group.size)
        return group

    def _equip(self, group: Group) -> None:
        """Sends ranks the data they need for the next step besides their models."""

    def _weigh(self, weight: float) -> None:
        assert self._sharing is not None
        self._sharing.weight = weight

    @staticmethod
    def _tell(group: Group, order: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> None:
        for rank in range(1, group.size):
            group.send(rank, order, arrays)


class RankedModel(_Ranked):
    """For PPO. Each rank holds the features of its environments, whole trajectories if their number divides evenly; the
    small columns are sent with every step."""

    placed = True
    _own: Model
    _features: Array | None = None
    _memory: Memory | None = None

    def values(self, features: Array, memory: Memory | None) -> Array:
        """Values [T, E] of features [T, E, ...], which the ranks keep."""
        return self._hold(features, memory, None)[0]

    def judged(self, features: Array, memory: Memory | None, batch: Minibatch) -> tuple[Array, Array]:
        """Values [T + 1, E], and log-probabilities [T, E] of the batch's actions; the ranks keep the features."""
        values, log_probs = self._hold(features, memory, batch)
        return values, log_probs

    def step(self, minibatch: Minibatch, steps: Steps) -> tuple[PpoTerms, float]:
        """One gradient step on all ranks."""
        return self._until_done(lambda group: self._step(group, minibatch, steps))

    def _hold(self, features: Array, memory: Memory | None, batch: Minibatch | None) -> list[Array]:
        # Ranks that replace lost ones get these.
        self._features, self._memory = features, memory

        def act(group: Group) -> list[Array]:
            for rank in range(1, group.size):
                self._send_held(group, rank, batch)
            own = self._environments(0, group.size)
            kept = None if memory is None else Memory(memory.starts[:, own], memory.state[own])
            if batch is None:
                parts = [[self._own.values(features[:, own], kept)]]
            else:
                part = batch.environments(own) if memory is not None else batch.rows(np.s_[:, own])
                parts = [list(self._own.judged(features[:, own], kept, part))]
            for rank in range(1, group.size):
                answer = group.receive(rank)[1]
                parts.append([answer[name] for name in ("values", "log_probs") if name in answer])
            return [np.concatenate(each, axis=1) for each in zip(*parts, strict=True)]

        return self._until_done(act)

    def _send_held(self, group: Group, rank: int, batch: Minibatch | None) -> None:
        assert self._features is not None
        chosen, memory = self._environments(rank, group.size), self._memory
        arrays = {"features": self._features[:, chosen]}
        if memory is not None:
            arrays |= {"starts": memory.starts[:, chosen], "state": memory.state[chosen]}
        if batch is not None:
            arrays |= _columns(batch, np.s_[:, chosen])
        group.send(rank, {"do": "hold", "judged": batch is not None}, arrays)

    def _equip(self, group: Group) -> None:
        if self._features is not None:
            for rank in range(1, group.size):
                self._send_held(group, rank, None)
                group.receive(rank)

    def _step(self, group: Group, minibatch: Minibatch, steps: Steps) -> tuple[PpoTerms, float]:
        assert minibatch.places is not None
        assert self._features is not None
        recurrent, width = minibatch.memory is not None, self._features.shape[1]
        # Places of steps or, with memory, of whole environments.
        places = minibatch.places[0] if recurrent else minibatch.places
        times, environments = np.divmod(places, width)
        counts = np.count_nonzero(minibatch.valid, axis=0) if minibatch.valid is not None else np.ones(len(places))
        own = np.zeros(0, np.int64)
        for rank in reversed(range(group.size)):
            range_ = self._environments(rank, group.size)
            rows = np.flatnonzero((environments >= range_.start) & (environments < range_.stop))
            weight = float(counts[rows].sum() / max(1, counts.sum()))
            chosen = environments[rows] - range_.start
            if not recurrent:
                chosen = times[rows] * (range_.stop - range_.start) + chosen
            if not weight:
                # A rank without steps takes part all the same, with one step of weight 0.
                rows, chosen = np.zeros(1, np.int64), np.zeros(1, np.int64)
            if rank:
                columns = _columns(minibatch, np.s_[:, rows] if recurrent else rows)
                order = {"do": "step", "weight": weight, "steps": list(steps)}
                group.send(rank, order, {"chosen": chosen, **columns})
            else:
                own = rows
                self._weigh(weight)
        return self._own.step(minibatch.environments(own) if recurrent else minibatch.rows(own), steps)

    def _environments(self, rank: int, size: int) -> slice:
        assert self._features is not None
        width = self._features.shape[1]
        return slice(width * rank // size, width * (rank + 1) // size)


class RankedQModel(_Ranked):
    """For DQN. The replay is rank 0's; the rows of each minibatch are divided."""

    _own: QModel

    def step(self, minibatch: QMinibatch, learning_rate: float) -> QStep:
        """One gradient step on all ranks."""
        return self._until_done(lambda group: self._step(group, minibatch, learning_rate))

    def follow(self, rate: float) -> None:
        """Follows on all ranks, here last, so that ranks that replace lost ones start from before it."""
        if self._group is not None:
            self._until_done(lambda group: self._tell(group, {"do": "follow", "rate": rate}))
        self._own.follow(rate)

    def _step(self, group: Group, minibatch: QMinibatch, learning_rate: float) -> QStep:
        count = len(minibatch.actions)
        cuts = [count * rank // group.size for rank in range(group.size + 1)]
        for rank in range(1, group.size):
            first, last = cuts[rank], cuts[rank + 1]
            order = {"do": "q_step", "first": first, "count": count, "learning_rate": learning_rate}
            group.send(rank, order, _rows(minibatch, slice(first, last)))
        sharing = self._sharing
        assert sharing is not None
        sharing.weight, sharing.first, sharing.count = cuts[1] / count, 0, count
        step = self._own.step(QMinibatch(**_rows(minibatch, slice(0, cuts[1]))), learning_rate)
        return step._replace(errors=sharing.errors)


class RankedSacModel(_Ranked):
    """For SAC. The replay and the noise are rank 0's; the rows of each minibatch are divided."""

    _own: SacModel

    def step(self, minibatch: QMinibatch, learning_rate: float) -> Learnt:
        """One gradient step of critics, actor and temperature on all ranks."""
        noise = self._own.noise(len(minibatch.returns))
        return self._until_done(lambda group: self._step(group, minibatch, learning_rate, noise))

    def _step(self, group: Group, minibatch: QMinibatch, learning_rate: float, noise: Array) -> Learnt:
        # A rank may be lost after the critics' step and before the actor's.
        before, count = self._own.tensors(), len(minibatch.returns)
        cuts = [count * rank // group.size for rank in range(group.size + 1)]

        def drawn(rank: int) -> Array:
            first, last = cuts[rank], cuts[rank + 1]
            return np.concatenate((noise[first:last], noise[count + first : count + last]))

        try:
            for rank in range(1, group.size):
                first, last = cuts[rank], cuts[rank + 1]
                order = {"do": "sac_step", "first": first, "count": count, "learning_rate": learning_rate}
                group.send(rank, order, {"noise": drawn(rank), **_rows(minibatch, slice(first, last))})
            sharing = self._sharing
            assert sharing is not None
            sharing.weight, sharing.first, sharing.count = cuts[1] / count, 0, count
            learnt = self._own.step(QMinibatch(**_rows(minibatch, slice(0, cuts[1]))), learning_rate, drawn(0))
        except RankLost:
            self._own.restore(before)
            raise
        return learnt._replace(errors=sharing.errors)


def _columns(minibatch: Minibatch, chosen: Any) -> dict[str, Array]:
    """All columns but the features, for some steps."""
    found = ((name, getattr(minibatch, name)) for name in COLUMNS)
    return {name: array[chosen] for name, array in found if array is not None}


def _rows(minibatch: QMinibatch, chosen: slice) -> dict[str, Array]:
    return {name: array[chosen] for name, array in minibatch._asdict().items() if array is not None}
