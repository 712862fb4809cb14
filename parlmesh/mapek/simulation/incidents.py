"""Incidents with a hidden best action, for comparing planners by their time to recovery."""

import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..knowledge import ELSEWHERE, Knowledge
from ..planning.action_choice import Choice, choose
from ..planning.trained_planner import Policy, trained
from ..types import Candidate, Decision, Status, Symptom

SYMPTOMS = ("cpu_percent", "memory_percent", "loss_percent", "error_percent")
CONTEXTS = ("edge", "core")
CAUSES = ("queue_length", "io_wait")
"""Each cause raises the metric of its name, so a planner that reads the node can tell incidents apart."""
ACTIONS = ("re-route", "restart", "scale-up", "clear-cache", "failover")
ALLOWED: dict[str, tuple[str, ...]] = {
    "cpu_percent": ("scale-up", "restart", "failover", "clear-cache"),
    "memory_percent": ("clear-cache", "restart", "scale-up", "failover"),
    "loss_percent": ("re-route", "failover", "restart"),
    "error_percent": ("failover", "restart", "clear-cache", "re-route"),
}
"""Actions that the rules allow, in order of preference."""
_MOST_TRIES = 8


@dataclass(frozen=True, slots=True)
class World:
    """How likely each action is to work, by symptom, context and cause. Planners never see it."""

    chances: dict[tuple[str, str, str, str], float]
    seconds: dict[str, float]

    @classmethod
    def drawn(cls, rng: random.Random, *, by_cause: bool = False) -> "World":
        """One random best action per symptom and context among the allowed ones; the others rarely help.

        With `by_cause`, each cause has its own best action.
        """
        chances = {}
        for symptom in SYMPTOMS:
            for context in CONTEXTS:
                drawn = [_chances(symptom, rng) for _ in (CAUSES if by_cause else CAUSES[:1])]
                for number, cause in enumerate(CAUSES):
                    for action, likely in drawn[number % len(drawn)].items():
                        chances[symptom, context, cause, action] = likely
        return cls(chances, {action: rng.uniform(15.0, 45.0) for action in ACTIONS})


def _chances(symptom: str, rng: random.Random) -> dict[str, float]:
    best = rng.choice(ALLOWED[symptom])
    return {action: rng.uniform(0.85, 0.95) if action == best else rng.uniform(0.05, 0.25) for action in ACTIONS}


@dataclass(frozen=True, slots=True)
class Incident:
    """The visible part of an incident: not its cause, but metrics that hint at it."""

    symptom: Symptom
    context: str
    metrics: dict[str, float]

    @property
    def name(self) -> str:
        """The symptom's name."""
        return self.symptom.name


Planner = Callable[[Incident, list[Candidate], str], Choice]


def by(kind: str) -> Planner:
    """The planner of that kind, which learns only by counting."""
    return lambda incident, candidates, seed: choose(kind, candidates, seed)


def by_file(policy: Policy) -> Planner:
    """A planner that uses a trained policy."""

    def planner(incident: Incident, candidates: list[Candidate], seed: str) -> Choice:
        rule = policy.rules[incident.name]
        features = rule.features(incident.symptom, incident.context, incident.metrics)
        return choose("policy", candidates, seed, rule.actions, features)

    return planner


@dataclass(slots=True)
class Played:
    """One planner's results over all incidents."""

    seconds: list[float] = field(default_factory=list)
    """Time to recovery of each incident."""
    forbidden: int = 0
    """Actions that the rules did not allow."""
    decisions: list[Decision] = field(default_factory=list)

    @property
    def mean_seconds(self) -> float:
        """Mean time to recovery."""
        return sum(self.seconds) / len(self.seconds)


def play(planner: Planner, world: World, incidents: int, seed: int, *, learns: bool) -> Played:
    """Plays incidents in turn; the planner tries until each recovers, and learns only from its own outcomes."""
    draws, hints = random.Random(seed), random.Random(f"{seed} hints")  # noqa: S311  # a simulation
    kept: dict[tuple[str, str, str], list[float]] = {}
    played = Played()
    for number in range(incidents):
        incident, cause = _drawn(draws, hints)
        # Draw the luck before any choice, so that all planners face the same.
        luck = {(action, turn): draws.random() for action in ACTIONS for turn in range(_MOST_TRIES)}
        allowed, total = ALLOWED[incident.name], 0.0
        tried: list[str] = []
        for turn in range(_MOST_TRIES):
            left = [action for action in allowed if action not in tried] or list(allowed)
            candidates = [_known(kept, incident, action) for action in left]
            action = planner(incident, candidates, f"{seed} {number} {turn}").action
            played.forbidden += action not in allowed
            seconds = world.seconds[action]
            worked = luck[action, turn] < world.chances[incident.name, incident.context, cause, action]
            total += seconds
            if learns:
                record = kept.setdefault((incident.name, incident.context, action), [0.0, 0.0, 0.0])
                record[0] += 1
                record[1] += worked
                record[2] += seconds if worked else 0.0
            played.decisions.append(_decision(incident, f"{seed}-{number}-{turn}", action, worked, seconds))
            tried.append(action)
            if worked:
                break
        played.seconds.append(total)
    return played


def _drawn(draws: random.Random, hints: random.Random) -> tuple[Incident, str]:
    name, context, cause = draws.choice(SYMPTOMS), draws.choice(CONTEXTS), hints.choice(CAUSES)
    metrics = {each: hints.gauss(80.0 if each == cause else 40.0, 12.0) for each in CAUSES}
    value = hints.uniform(85.0, 100.0)
    symptom = Symptom(name, name, value, 80.0, "warning", "simulated")
    return Incident(symptom, context, {name: value, **metrics}), cause


def _decision(incident: Incident, name: str, action: str, worked: bool, seconds: float) -> Decision:
    status = Status.WORKED if worked else Status.ROLLED_BACK
    decision = Decision(name, 0, "simulated", incident.symptom, action, "simulated", incident.name, incident.context)
    decision.inputs, decision.status, decision.seconds = {"metrics": incident.metrics}, status, seconds
    return decision


def _known(kept: dict[tuple[str, str, str], list[float]], incident: Incident, action: str) -> Candidate:
    """The counts in the form that the knowledge gives: tries in another context count less."""
    tries = successes = seconds = 0.0
    for other in CONTEXTS:
        weight = 1.0 if other == incident.context else ELSEWHERE
        count, worked, spent = kept.get((incident.name, other, action), (0.0, 0.0, 0.0))
        tries, successes, seconds = tries + weight * count, successes + weight * worked, seconds + weight * spent
    return Candidate(action, tries, successes, seconds / successes if successes else 0.0)


def compare(seeds: Sequence[int], incidents: int = 200, *, by_cause: bool = False) -> list[dict[str, float]]:
    """Mean seconds to recovery of the fixed rules, the counting planner and a trained policy, for each seed.

    The policy is trained on the knowledge of a counting planner after the same number of other incidents, then saved
    and loaded.
    """
    rows = []
    for seed in seeds:
        world = World.drawn(random.Random(seed), by_cause=by_cause)  # noqa: S311  # a simulation
        fixed = play(by("rules"), world, incidents, seed, learns=False)
        counted = play(by("learned"), world, incidents, seed, learns=True)
        before = play(by("learned"), world, incidents, seed + 1_000_000, learns=True)
        policy = _through_files(before.decisions)
        filed = play(by_file(policy), world, incidents, seed, learns=False)
        rows.append(
            {
                "seed": seed,
                "rules_seconds": fixed.mean_seconds,
                "learned_seconds": counted.mean_seconds,
                "policy_seconds": filed.mean_seconds,
                "shorter": 1.0 - counted.mean_seconds / fixed.mean_seconds,
                "policy_shorter": 1.0 - filed.mean_seconds / fixed.mean_seconds,
                "forbidden": float(fixed.forbidden + counted.forbidden + filed.forbidden),
            }
        )
    return rows


def _through_files(decisions: list[Decision]) -> Policy:
    with tempfile.TemporaryDirectory() as folder:
        with Knowledge(Path(folder) / "knowledge.sqlite") as knowledge:
            knowledge.save(decisions)
            policy = trained(knowledge.decisions(len(decisions)))
        policy.save(Path(folder) / "planner.json")
        return Policy.load(Path(folder) / "planner.json")
