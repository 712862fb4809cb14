"""PettingZoo's two-player games by name: its agent-environment cycle as `Games`, one environment per game.

Nothing is read after the end of a game: both agents then get a dead step, and the second one clears the rewards.
"""

import copy
import importlib
from typing import Any, Self

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import ACTION_MASK, Array

from .game import Verdict


def _refusal(name: str, why: str) -> InvalidInput:
    return InvalidInput(f"game {name!r} cannot be played here: {why}", reason="GAME")


class PettingZooGames:
    """`name` is module:game, e.g. pettingzoo.classic:connect_four_v3."""

    def __init__(self, count: int, name: str, **arguments: Any) -> None:
        module, _, game = name.rpartition(":")
        try:
            made = getattr(importlib.import_module(module), game)
        except (ImportError, AttributeError, ValueError) as error:
            raise _refusal(name, f"{error}; pip install parlmesh[games]") from error
        self._name = name
        self.count = count
        self._envs = [made.env(**arguments) for _ in range(count)]
        first = self._envs[0]
        self._agents: list[str] = list(first.possible_agents)
        if len(self._agents) != 2:
            raise _refusal(name, f"it has {len(self._agents)} players, and two are needed")
        space = first.observation_space(self._agents[0])
        parts = getattr(space, "spaces", {})
        if "observation" not in parts or ACTION_MASK not in parts:
            raise _refusal(name, f"its observations must have the parts observation and {ACTION_MASK}")
        seen = parts["observation"]
        if len(seen.shape) != 3:
            raise _refusal(name, f"an observation must have three axes, got {list(seen.shape)}")
        rows, columns, planes = seen.shape
        self.shape = (planes, rows, columns)
        small = seen.dtype.kind in "bui" and float(seen.low.min()) >= 0.0 and float(seen.high.max()) <= 255.0
        self.dtype = "uint8" if small else "float32"
        self.choices = int(first.action_space(self._agents[0]).n)
        self._made = np.zeros(count, np.int64)

    def start(self, which: Array, rng: np.random.Generator) -> None:
        """Resets the environments; some ignore the seed."""
        for index in which.tolist():
            self._envs[index].reset(seed=int(rng.integers(2**31)))
        self._made[which] = 0

    def planes(self, which: Array, *, waiting: bool = False) -> Array:
        """Moves the planes from the last axis to the first."""
        found = np.empty((len(which), *self.shape), self.dtype)
        for row, index in enumerate(which.tolist()):
            env = self._envs[index]
            mover = self._mover(index)
            agent = self._other(mover) if waiting else mover
            found[row] = np.moveaxis(env.observe(agent)["observation"], 2, 0)
        return found

    def legal(self, which: Array) -> Array:
        """The mask of the side to move; the other's is all zeros."""
        found = np.zeros((len(which), self.choices), np.bool_)
        for row, index in enumerate(which.tolist()):
            env = self._envs[index]
            if not self._over(env):
                found[row] = env.observe(self._mover(index))[ACTION_MASK]
        return found

    def play(self, which: Array, moves: Array) -> Array:
        """One step each."""
        verdicts = np.zeros(len(which), np.int8)
        for row, (index, move) in enumerate(zip(which.tolist(), moves.tolist(), strict=True)):
            env, mover = self._envs[index], self._mover(index)
            env.step(move)
            self._made[index] += 1
            if self._over(env):
                verdicts[row] = self._verdict(env, mover)
        return verdicts

    def material(self, which: Array) -> Array:
        """Always 0: PettingZoo has no material."""
        return np.zeros(len(which), np.float32)

    def plies(self, which: Array) -> Array:
        """Steps taken."""
        return self._made[which]

    def room(self, count: int) -> Self:
        """Environments are only created by copying."""
        found = copy.copy(self)
        found.count = count
        found._envs = [None] * count
        found._made = np.zeros(count, np.int64)
        return found

    def copy_from(self, which: Array, source: Self, rows: Array) -> None:
        """Deep-copies environments one by one, which is slow."""
        for index, row in zip(which.tolist(), rows.tolist(), strict=True):
            self._envs[index] = copy.deepcopy(source._envs[row])
        self._made[which] = source._made[rows]

    def _mover(self, index: int) -> str:
        """From the count of moves: after the end, the environment's own selection refers to dead steps."""
        return self._agents[int(self._made[index]) % 2]

    def _other(self, agent: str) -> str:
        return self._agents[1 - self._agents.index(agent)]

    def _over(self, env: Any) -> bool:
        return any(env.terminations.values()) or any(env.truncations.values())

    def _verdict(self, env: Any, mover: str) -> Verdict:
        earned = float(env.rewards[mover])
        if earned + float(env.rewards[self._other(mover)]) != 0.0:
            raise _refusal(self._name, f"rewards {dict(env.rewards)} do not sum to zero")
        if earned:
            return Verdict.WON if earned > 0.0 else Verdict.LOST
        return Verdict.DRAWN if any(env.terminations.values()) else Verdict.LIMIT
