"""Which of the allowed actions treats a symptom: by the rule's order, by its success with this symptom, or by a trained
policy."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parlmesh.errors import InvalidInput

from ..types import Candidate
from .trained_planner import ActionModel

_PRIOR_SECONDS = 30.0
"""Prior recovery time when no candidate has ever succeeded."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An action, the reason for it, and each candidate's standing; the lowest wins."""

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
    """Always one of the candidates. The same seed gives the same choice."""
    if not candidates:
        raise InvalidInput("a plan needs at least one candidate")
    if planner == "policy" and models:
        return by_policy(candidates, models, features)
    if planner == "learned":
        return by_what_worked(candidates, random.Random(seed))  # noqa: S311  # exploration, not a secret
    return by_rule(candidates)


def by_rule(candidates: Sequence[Candidate]) -> Choice:
    """The first in the rule's order; actions that failed more often than they worked come last."""
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
    """Thompson sampling on the expected time to recovery: draws P(works) and takes the lowest seconds / P.

    For independent tries, ascending seconds / P is the fastest order. P of an untried action is drawn uniformly from 0
    to 1, so it is tried from time to time.
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
    """The lowest seconds / P(works) under a trained policy; every consecutive failure on this node halves P.

    An action that the policy does not know gets P = 0.5 and the mean duration of the others.
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
