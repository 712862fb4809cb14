"""Steps many environments with a policy, fragment after fragment: the loop that actors and serial runs share."""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlmesh.action_masks import pack_mask
from parlmesh.algorithms.random_state import pack_random_state, restore_random_state
from parlmesh.environments import Environments
from parlmesh.environments.two_players import Finished, Opponent
from parlmesh.errors import InvalidInput
from parlmesh.policies import Policy, SearchingPolicy
from parlmesh.types import (
    ACTION,
    ACTION_MASK,
    EARNED,
    LOG_PROB,
    OBSERVATION,
    REWARD,
    STATE,
    TARGET_ACTION,
    TARGET_CHANCE,
    TERMINATED,
    TRUNCATED,
    VALID,
    Array,
    EpisodeColumns,
    Fragment,
    Search,
    target_width,
)

from .episode_replay import Lives, Played


def collector_seed(run_seed: int, actor_id: str, incarnation: int, slot: int = 0) -> np.random.SeedSequence:
    """A separate stream for every slot of every incarnation of every actor: a restarted actor never repeats games."""
    actor = int.from_bytes(hashlib.sha256(actor_id.encode()).digest()[:8], "little")
    return np.random.SeedSequence([run_seed, actor, incarnation, slot])


@dataclass(frozen=True, slots=True)
class Mark:
    """A collector's state between two fragments: enough to restore it in another collector."""

    played: Played | None
    rng: Array
    observation: Array
    memory: Array | None

    def tensors(self) -> dict[str, Array]:
        """Tensors for a checkpoint; empty if the games are not remembered."""
        if self.played is None:
            return {}
        found = {"starts": self.played.starts, "began": self.played.began, "rng": self.rng}
        found["observation"] = self.observation
        if self.played.actions:
            found["actions"] = np.concatenate(self.played.actions)
        return found if self.memory is None else {**found, "memory": self.memory}


class Collector:
    """Steps its environments from fragment to fragment; episodes continue across them.

    After `restart_steps` steps an environment starts its next episode from its own seed (`Lives`); 0 = never.
    Environments of a native vector form share their random numbers and never do. A `repeatable` collector remembers the
    actions since then, which is enough to bring environments to the same state again. With `reward_discount` every
    fragment says what its episodes had earned before, so that sums of rewards do not depend on where fragments are cut.
    With `search` the policy looks ahead, and fragments include the actions that this found better.
    """

    def __init__(
        self,
        environment: Mapping[str, Any],
        num_envs: int,
        seed: np.random.SeedSequence,
        *,
        restart_steps: int = 0,
        repeatable: bool = False,
        reward_discount: float | None = None,
        search: Search | None = None,
    ) -> None:
        if num_envs < 1:
            raise InvalidInput(f"num_envs must be >= 1, got {num_envs}")
        self._num_envs = num_envs
        self._seed = seed
        self._restart_steps = restart_steps
        # Steps taken so far, so that another thread sees whether they continue.
        self.stepped = 0
        self._repeatable = repeatable
        self._reward_discount = reward_discount
        self._search = search
        self._envs = Environments(environment, num_envs)
        action = self._envs.spec.action
        self._remembered = np.min_scalar_type(max(action.sizes)) if action.sizes else np.dtype(action.dtype)
        self._faced = False
        try:
            self._start()
        except BaseException:
            with contextlib.suppress(Exception):
                self._envs.close()
            raise

    def _start(self) -> None:
        """Sets environments and random numbers to their first state, each from its own stream."""
        environment_seed, action_seed = (
            np.random.SeedSequence(self._seed.entropy, spawn_key=(*self._seed.spawn_key, child)) for child in (0, 1)
        )
        restart_steps = self._restart_steps if self._envs.separate else 0
        # Opponents are not remembered, so games against versions cannot be played again.
        repeatable = self._repeatable and not self._faced
        self._lives = Lives(self._num_envs, self._seed, restart_steps=restart_steps, repeatable=repeatable)
        self._rng = np.random.default_rng(action_seed)
        self._seen = self._envs.reset(int(environment_seed.generate_state(1)[0]))
        self._state: Array | None = None
        self._ended = np.zeros(self._num_envs, dtype=np.bool_)
        self._returns = np.zeros(self._num_envs, dtype=np.float64)
        self._lengths = np.zeros(self._num_envs, dtype=np.int64)
        self._earned = np.zeros(self._num_envs, dtype=np.float64)

    def collect(self, policy: Policy, steps: int, opponents: Sequence[Opponent] = ()) -> Fragment:
        """Takes `steps` steps in every environment with one policy; new games meet one of `opponents`."""
        if opponents:
            self._envs.face(opponents)
            if not self._faced:
                # The first games started before any opponents were named.
                self._faced = True
                self._start()
        searching: SearchingPolicy | None = None
        if self._search is not None:
            policy = searching = self._envs.searching(policy, self._search)
        seen = self._seen
        state = self._state if self._state is not None else policy.initial_state(self._num_envs)
        columns = self._columns(steps, state)
        masks = columns.get(ACTION_MASK)
        observations, actions, log_probs = columns[OBSERVATION], columns[ACTION], columns[LOG_PROB]
        episodes: list[tuple[Array, Array]] = []
        for step in range(steps):
            action, log_prob, state = policy.act(seen.observation, self._rng, seen.mask, state)
            if self._ended.any() and (seeds := self._lives.next_lives(self._ended, step)):
                self._envs.start_anew(seeds)
            seen, reward, terminated, truncated = self._envs.step(policy.to_environment(action))
            self.stepped += 1
            observations[step + 1] = seen.observation
            actions[step] = action
            log_probs[step] = log_prob
            if searching is not None:
                columns[TARGET_ACTION][step], columns[TARGET_CHANCE][step] = searching.target
            columns[REWARD][step] = reward
            columns[TERMINATED][step] = terminated
            columns[TRUNCATED][step] = truncated
            valid = columns[VALID][step]
            np.logical_not(self._ended, out=valid)
            if masks is not None and seen.mask is not None:
                masks[step + 1] = pack_mask(seen.mask)
            if state is not None:
                # Environments that were reset in this step start their episodes without memory.
                state = np.where(valid[:, None], state, np.float32(0.0))
            self._ended = self._account(reward, valid, terminated | truncated, episodes)
        self._seen, self._state = seen, state
        self._lives.add(actions.astype(self._remembered, copy=False))
        return Fragment(columns, _joined(episodes))

    def finished(self) -> list[Finished]:
        """Games that ended since the last call."""
        return self._envs.finished()

    def mark(self) -> Mark:
        """This collector's present state."""
        return Mark(self._lives.played(), pack_random_state(self._rng), self._seen.observation.copy(), self._state)

    def go_to(self, tensors: Mapping[str, Array], policy: Policy) -> bool:
        """Plays the actions of a mark again; False when that does not lead to where the mark was taken."""
        self._start()
        # Older checkpoints do not say when lives started.
        if "began" not in tensors:
            return False
        actions = (tensors["actions"],) if "actions" in tensors else ()
        played = Played(tensors["starts"], tensors["began"], actions)
        if not self._playable(played):
            return False
        dtype = self._envs.spec.action.dtype
        for action, seeds, waiting in self._lives.play_again(played):
            self._envs.rest(waiting)
            if seeds:
                self._envs.start_anew(seeds)
                begun = list(seeds)
                self._ended[begun], self._returns[begun], self._lengths[begun], self._earned[begun] = True, 0.0, 0, 0.0
            given = policy.to_environment(action.astype(dtype))
            try:
                self._seen, reward, terminated, truncated = self._envs.step(given)
            except Exception:
                # A game that develops differently, for example with other settings, may forbid these actions.
                return False
            self._ended = self._account(reward, ~self._ended, terminated | truncated, [])
        self._state = tensors.get("memory")
        restore_random_state(self._rng, tensors["rng"])
        return np.array_equal(self._seen.observation, tensors["observation"])

    def _playable(self, played: Played) -> bool:
        """Whether it fits the number of environments and their actions, and its lives can start here."""
        one_each, shape = (self._num_envs,), self._envs.spec.action.shape
        if played.starts.shape != one_each or played.began.shape != one_each:
            return False
        if not self._envs.separate and (played.starts > 1).any():
            return False
        return all(actions.shape[1:] == (*one_each, *shape) for actions in played.actions)

    def close(self) -> None:
        """Frees the environments."""
        self._envs.close()

    def _columns(self, steps: int, state: Array | None) -> dict[str, Array]:
        """Columns for a fragment, with the rows before the first step filled in."""
        seen, action, grid = self._seen, self._envs.spec.action, (steps, len(self._ended))
        columns = {
            OBSERVATION: np.empty((steps + 1, *seen.observation.shape), seen.observation.dtype),
            ACTION: np.empty((*grid, *action.shape), action.dtype),
            LOG_PROB: np.empty(grid, np.float32),
            REWARD: np.empty(grid, np.float32),
            TERMINATED: np.empty(grid, np.bool_),
            TRUNCATED: np.empty(grid, np.bool_),
            VALID: np.empty(grid, np.bool_),
        }
        columns[OBSERVATION][0] = seen.observation
        if seen.mask is not None:
            mask = pack_mask(seen.mask)
            columns[ACTION_MASK] = np.empty((steps + 1, *mask.shape), mask.dtype)
            columns[ACTION_MASK][0] = mask
        if state is not None:
            columns[STATE] = state.copy()
        if self._search is not None:
            width = target_width(action.outputs)
            columns[TARGET_ACTION] = np.empty((*grid, width), np.int32)
            columns[TARGET_CHANCE] = np.empty((*grid, width), np.float32)
        if self._reward_discount is not None:
            columns[EARNED] = self._earned.astype(np.float32)
        return columns

    def _account(self, reward: Array, valid: Array, ended: Array, episodes: list[tuple[Array, Array]]) -> Array:
        self._returns += reward
        self._lengths += valid
        if self._reward_discount is not None:
            self._earned = np.where(ended, 0.0, reward + self._reward_discount * self._earned)
        if ended.any():
            episodes.append((self._returns[ended], self._lengths[ended]))
            self._returns[ended] = 0.0
            self._lengths[ended] = 0
        return ended


def _joined(episodes: list[tuple[Array, Array]]) -> EpisodeColumns:
    if not episodes:
        return EpisodeColumns(np.empty(0, np.float32), np.empty(0, np.int64))
    returns, lengths = (np.concatenate(column) for column in zip(*episodes, strict=True))
    return EpisodeColumns(returns.astype(np.float32), lengths)
