"""The loop's learned planner as a SWIM manager: Reactive's symptoms and actions, chosen by what worked before."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..planning.action_choice import choose
from ..types import Candidate
from .swim import LATEST_SECONDS, PERIOD_SECONDS, SERVERS, Web, day, total_utility

TAUGHT_BY = range(20, 30)
"""Loads that a planner learns from before it is evaluated on others."""


@dataclass(slots=True)
class LearnedManager:
    """Takes at most one of Reactive's actions per period; it worked if the next period is in time."""

    seed: int
    outcomes: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """Tries and successes, by symptom and action."""
    _waiting: tuple[str, str] | None = None
    _choices: int = 0

    def __call__(self, web: Web) -> None:
        late = web.response_seconds > LATEST_SECONDS
        if self._waiting is not None:
            tries, successes = self.outcomes.get(self._waiting, (0, 0))
            self.outcomes[self._waiting] = tries + 1, successes + (not late)
            self._waiting = None
        symptom, actions = _allowed(web, late=late)
        if not actions:
            return
        self._choices += 1
        known = [Candidate(each, *self.outcomes.get((symptom, each), (0, 0)), PERIOD_SECONDS) for each in actions]
        action = choose("learned", known, f"{self.seed} {self._choices}").action
        match action:
            case "add":
                web.add()
            case "remove":
                web.remove()
            case _:
                web.dim(-1 if action == "less" else +1)
        self._waiting = symptom, action


def taught(boot_seconds: float, loads: Iterable[int] = TAUGHT_BY) -> dict[tuple[str, str], tuple[int, int]]:
    """The outcomes that a planner has learned from these loads."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for seed in loads:
        total_utility(LearnedManager(seed, found), day(seed), boot_seconds, seed)
    return found


def _allowed(web: Web, *, late: bool) -> tuple[str, list[str]]:
    """The symptom, and the actions that Reactive's rules allow for it."""
    if late:
        more = ["add"] if not web.booting and web.servers < SERVERS else []
        return "late", more + (["less"] if web.dimmer > 0 else [])
    if web.active - web.used <= 1:
        return "", []
    if web.dimmer < 1:
        return "spare content", ["more"]
    return "spare servers", ["remove"] if not web.booting and web.servers > 1 else []
