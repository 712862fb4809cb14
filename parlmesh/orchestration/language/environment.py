"""`parlmesh/LanguageOrchestration-v0`: every action is a token, with a token's log-probability.

An observation is the last tokens of the conversation, each plus one because 0 is padding, and the counts for the
orchestrator's reward. The mask is the grammar of tool calls.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from ..budget import Budget
from ..jobs.observation import COUNTED, ENDS
from ..jobs.sub_agents import SUB_TASKS, sub_agent
from .conversation import Conversation
from .vocabulary import ITEMS, PIECES, allowed, decode, encode

NAME = "parlmesh/LanguageOrchestration-v0"


class LanguageOrchestration(gymnasium.Env[dict[str, Array], np.int64]):
    """A job of `items` items. The same `prompts` jobs recur, so that several answers to one can be compared."""

    def __init__(
        self, items: int = 4, *, prompts: int = 8, window: int = 96, agent: str = "large", critical_steps: int = 60
    ) -> None:
        if not 1 <= items <= len(ITEMS):
            raise InvalidInput(f"items must be from 1 to {len(ITEMS)}, got {items}")
        if not 16 <= window <= 4_096:
            raise InvalidInput(f"window must be from 16 to 4096 tokens, got {window}")
        if prompts < 1:
            raise InvalidInput(f"prompts must be >= 1, got {prompts}")
        self._items, self._prompts, self._window = items, prompts, window
        self._agent, self._critical = sub_agent(agent), critical_steps
        # A list of pairs keeps its order: the reward is read from the last numbers.
        self.observation_space: spaces.Dict = spaces.Dict(  # type: ignore[assignment]  # a Dict of arrays
            [
                ("tokens", spaces.Box(0.0, float(len(PIECES)), (window,), np.float32)),
                ("counts", spaces.Box(0.0, np.inf, (len(ENDS),), np.float32)),
                ("action_mask", spaces.MultiBinary(len(PIECES))),
            ]
        )
        self.action_space = spaces.Discrete(len(PIECES))
        self._talk: Conversation | None = None
        self._tokens: list[int] = []
        self._begun: list[int] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Array], dict[str, Any]]:
        """Starts one of the jobs."""
        super().reset(seed=seed)
        job = np.random.default_rng(int(self.np_random.integers(self._prompts)))
        names = job.permutation(ITEMS)[: self._items].tolist()
        draws = job.integers(0, SUB_TASKS, self._items).tolist()
        self._talk = Conversation(dict(zip(names, draws, strict=True)), self._agent, Budget(self._critical))
        self._tokens, self._begun = encode(self._talk.text), []
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        """One token."""
        assert self._talk is not None
        token = int(action)
        self._tokens.append(token)
        self._begun.append(token)
        answer = self._talk.say(decode([token]))
        if answer:
            self._tokens += encode(answer)
            self._begun = []
        over = self._talk.over
        return self._seen(), self._talk.coverage if self._talk.finished else 0.0, over, False, {}

    def _seen(self) -> dict[str, Array]:
        talk = self._talk
        assert talk is not None
        tokens = np.zeros(self._window, np.float32)
        last = self._tokens[-self._window :]
        tokens[self._window - len(last) :] = np.array(last) + 1
        spent = talk.budget.spent
        whole = (spent["critical_steps"], self._items, len(talk.agents), talk.assigned_ever, talk.completed)
        mask = np.zeros(len(PIECES), np.int8)
        mask[allowed(self._begun, talk.state)] = 1
        return {
            "tokens": tokens,
            "counts": np.array([talk.coverage, talk.finished, *(count / COUNTED for count in whole)], np.float32),
            "action_mask": mask,
        }
