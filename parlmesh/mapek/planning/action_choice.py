"""Which of the allowed actions is taken: the rule's order, what worked for this symptom, or a trained policy."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parlmesh.errors import InvalidInput

from ..types import Candidate
from .trained_planner import ActionModel

_PRIOR_SECONDS = 30.0
"""Taken for an action that never succeeded."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An action, why it was taken, and how each candidate stood; the lowest standing wins."""

    action: str
    reason: str
    standing: dict[str, float]


def choose(
    planner: str,
    candidates: Sequence[Candidate],
    seed: str,
    models: Mapping[str, ActionModel] | None = None,
    features: Sequence[float] = (),
) -> Choice:
    """One of the candidates and never anything else. The same seed chooses the same."""
    if not candidates:
        raise InvalidInput("a plan needs at least one candidate")
    if planner == "policy" and models:
        return by_policy(candidates, models, features)
    if planner == "learned":
        return by_what_worked(candidates, random.Random(seed))  # noqa: S311  # exploration, no secret
    return by_rule(candidates)


def by_rule(candidates: Sequence[Candidate]) -> Choice:
    """The first of the rule's order; those that failed more often than they worked stand behind the others."""
    standing = {
        each.action: float(index + (len(candidates) if _fails(each) else 0)) for index, each in enumerate(candidates)
    }
    best = min(candidates, key=lambda each: standing[each.action])
    passed = [each for each in candidates[: candidates.index(best)] if _fails(each)]
    reason = "the rule's first choice"
    if passed:
        names = ", ".join(f"{each.action} ({each.successes} of {each.tries} worked)" for each in passed)
        reason = f"the rule's next choice after {names}"
    elif _fails(best):
        reason = f"the rule's first choice, although {best.successes} of {best.tries} tries worked"
    return Choice(best.action, reason, standing)


def by_what_worked(candidates: Sequence[Candidate], rng: random.Random) -> Choice:
    """Thompson sampling on the expected time to recovery: a draw of P(works), then seconds / P; the lowest is taken.

    Trying actions in the order of seconds / P is the quickest way through independent tries. An action that is not
    known is drawn from all of 0 to 1, so that it is tried now and then.
    """
    known = [each.mean_seconds for each in candidates if each.successes]
    prior = sum(known) / len(known) if known else _PRIOR_SECONDS
    standing = {}
    for each in candidates:
        seconds = (each.mean_seconds * each.successes + prior) / (each.successes + 1)
        chance = rng.betavariate(1 + each.successes, 1 + each.tries - each.successes)
        standing[each.action] = seconds / max(chance, 1e-6)
    best = min(candidates, key=lambda each: standing[each.action])
    told = f"{best.successes} of {best.tries} tries worked" if best.tries else "never tried"
    return Choice(best.action, f"{standing[best.action]:.3g} s to recovery is the least drawn; {told}", standing)


def by_policy(candidates: Sequence[Candidate], models: Mapping[str, ActionModel], features: Sequence[float]) -> Choice:
    """The least seconds / P(works) by a trained policy; every failure in a row on this node halves an action's chance.

    An action that the policy never saw counts as one that works every other time, as long as the others do on average.
    """
    usual = sum(each.seconds for each in models.values()) / len(models)
    chances, standing = {}, {}
    for each in candidates:
        model = models.get(each.action)
        if model is not None and len(model.weights) != len(features):
            raise InvalidInput(f"the policy has {len(model.weights)} weights for {len(features)} features")
        chances[each.action] = (model.chance(features) if model else 0.5) * 0.5 ** min(each.failures, 20)
        standing[each.action] = (model.seconds if model else usual) / max(chances[each.action], 1e-9)
    best = min(candidates, key=lambda each: standing[each.action])
    told = f"works with chance {chances[best.action]:.2f} here" if best.action in models else "is not in the policy"
    return Choice(
        best.action, f"{standing[best.action]:.3g} s to recovery is the least; {best.action} {told}", standing
    )


def _fails(candidate: Candidate) -> bool:
    return candidate.tries - candidate.successes > candidate.successes
