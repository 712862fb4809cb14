"""Which of the allowed actions is taken: the rule's order, or what worked for this symptom."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from parlmesh.errors import InvalidInput

from ..types import Candidate

_PRIOR_SECONDS = 30.0
"""Taken for an action that never succeeded."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An action, why it was taken, and how each candidate stood; the lowest standing wins."""

    action: str
    reason: str
    standing: dict[str, float]


def choose(planner: str, candidates: Sequence[Candidate], seed: str) -> Choice:
    """One of the candidates and never anything else. The same seed chooses the same."""
    if not candidates:
        raise InvalidInput("a plan needs at least one candidate")
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


def _fails(candidate: Candidate) -> bool:
    return candidate.tries - candidate.successes > candidate.successes
