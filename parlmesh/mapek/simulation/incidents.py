"""Incidents with a hidden best action, to judge planners by their time to recovery."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ..planning.choice import choose
from ..types import Candidate

SYMPTOMS = ("cpu_percent", "memory_percent", "loss_percent", "error_percent")
CONTEXTS = ("edge", "core")
ACTIONS = ("re-route", "restart", "scale-up", "clear-cache", "failover")
ALLOWED: dict[str, tuple[str, ...]] = {
    "cpu_percent": ("scale-up", "restart", "failover", "clear-cache"),
    "memory_percent": ("clear-cache", "restart", "scale-up", "failover"),
    "loss_percent": ("re-route", "failover", "restart"),
    "error_percent": ("failover", "restart", "clear-cache", "re-route"),
}
"""What the rules allow, their first choice first."""
_MOST_TRIES = 8
ELSEWHERE = 0.2


@dataclass(frozen=True, slots=True)
class World:
    """For every symptom and context: how likely each action works. Planners never see it."""

    chances: dict[tuple[str, str, str], float]
    seconds: dict[str, float]

    @classmethod
    def drawn(cls, rng: random.Random) -> "World":
        """One best action for each symptom and context, at random among the allowed ones; the others seldom help."""
        chances = {}
        for symptom in SYMPTOMS:
            for context in CONTEXTS:
                best = rng.choice(ALLOWED[symptom])
                for action in ACTIONS:
                    likely = rng.uniform(0.85, 0.95) if action == best else rng.uniform(0.05, 0.25)
                    chances[symptom, context, action] = likely
        return cls(chances, {action: rng.uniform(15.0, 45.0) for action in ACTIONS})


@dataclass(slots=True)
class Played:
    """What a planner did over all incidents."""

    seconds: list[float]
    """To the recovery of each incident."""
    forbidden: int
    """Actions that the rules did not allow."""

    @property
    def mean_seconds(self) -> float:
        """Mean time to recovery."""
        return sum(self.seconds) / len(self.seconds)


def play(planner: str, world: World, incidents: int, seed: int) -> Played:
    """Incident after incident; a planner keeps trying until one recovers, and learns only from its own outcomes."""
    draws = random.Random(seed)  # noqa: S311  # a simulation
    kept: dict[tuple[str, str, str], list[float]] = {}
    played = Played([], 0)
    for number in range(incidents):
        symptom, context = draws.choice(SYMPTOMS), draws.choice(CONTEXTS)
        # Luck is fixed before anything is chosen, so that all planners meet the same.
        luck = {(action, turn): draws.random() for action in ACTIONS for turn in range(_MOST_TRIES)}
        total = 0.0
        tried: list[str] = []
        for turn in range(_MOST_TRIES):
            left = [action for action in ALLOWED[symptom] if action not in tried] or list(ALLOWED[symptom])
            candidates = [_known(kept, symptom, context, action) for action in left]
            action = choose(planner, candidates, f"{seed} {number} {turn}").action
            played.forbidden += action not in ALLOWED[symptom]
            seconds = world.seconds[action]
            worked = luck[action, turn] < world.chances[symptom, context, action]
            total += seconds
            if planner != "rules":
                record = kept.setdefault((symptom, context, action), [0.0, 0.0, 0.0])
                record[0] += 1
                record[1] += worked
                record[2] += seconds if worked else 0.0
            tried.append(action)
            if worked:
                break
        played.seconds.append(total)
    return played


def _known(kept: dict[tuple[str, str, str], list[float]], symptom: str, context: str, action: str) -> Candidate:
    """As the knowledge counts: tries in another context count less."""
    tries = successes = seconds = 0.0
    for other in CONTEXTS:
        weight = 1.0 if other == context else ELSEWHERE
        count, worked, spent = kept.get((symptom, other, action), (0.0, 0.0, 0.0))
        tries, successes, seconds = tries + weight * count, successes + weight * worked, seconds + weight * spent
    return Candidate(action, tries, successes, seconds / successes if successes else 0.0)


def compare(seeds: Sequence[int], incidents: int = 200) -> list[dict[str, float]]:
    """For each seed: mean seconds of the fixed rules and of the learned planner, and the share that fell."""
    rows = []
    for seed in seeds:
        world = World.drawn(random.Random(seed))  # noqa: S311  # a simulation
        fixed, learned = play("rules", world, incidents, seed), play("learned", world, incidents, seed)
        rows.append(
            {
                "seed": seed,
                "rules_seconds": fixed.mean_seconds,
                "learned_seconds": learned.mean_seconds,
                "shorter": 1.0 - learned.mean_seconds / fixed.mean_seconds,
                "forbidden": float(fixed.forbidden + learned.forbidden),
            }
        )
    return rows
