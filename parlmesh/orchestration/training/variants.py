"""Variants of a training to compare, as changes to `training.custom` and the environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from parlmesh.errors import InvalidInput


@dataclass(frozen=True)
class Variant:
    """A training, described by its changes."""

    name: str
    about: str
    custom: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment."""


_NONE = {"lambda1": 0.0, "lambda2": 0.0}
_AUTOMATIC = {"assigning": "automatic"}
_STRICT = {"credit": "finished"}
_CERTAIN = {"ppo": {"entropy_coefficient": 0.0}}

VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("annealed", "both auxiliary terms, gone after 60 % of the training"),
        Variant("r_perf only", "no auxiliary term from the start", {"reward": _NONE}),
        Variant("no r_parallel", "r_finish alone, annealed", {"reward": {"lambda1": 0.0}}),
        Variant("no r_finish", "r_parallel alone, annealed", {"reward": {"lambda2": 0.0}}),
        Variant("never annealed", "auxiliary terms to the end", {"reward": {"schedule": "constant"}}),
        Variant("blog form", "two terms, annealed", {"reward": {"form": "blog"}}),
        Variant(
            "chains paid too", "auxiliary terms also where a job has no width", {"reward": {"only_where_wide": False}}
        ),
        Variant(
            "log-ratio",
            "the report's objective instead of PPO's",
            {"ppo": {"objective": "log_ratio", "log_ratio_penalty": 0.05}},
        ),
        Variant(
            "automatic, r_perf only",
            "idle sub-agents are assigned automatically",
            {"reward": _NONE, **_AUTOMATIC},
            _AUTOMATIC,
        ),
        Variant(
            "no entropy, r_perf only",
            "no auxiliary term, and nothing else that keeps it exploring",
            {"reward": _NONE, **_CERTAIN},
        ),
        Variant("no entropy, annealed", "the same with the auxiliary terms", _CERTAIN),
        Variant("strict, r_perf only", "a job that its budget cut off is worth nothing", {"reward": _NONE}, _STRICT),
        Variant("strict, annealed", "the same with the auxiliary terms", {}, _STRICT),
        Variant("automatic, annealed", "the same with the auxiliary terms", _AUTOMATIC, _AUTOMATIC),
    )
}
COMPARED = ("annealed", "r_perf only", "no r_parallel", "no r_finish", "never annealed")


def variant_named(name: str, prior_updates: int = 0) -> Variant:
    """The variant of that name, starting with a serial prior of `prior_updates` gradient steps."""
    if name not in VARIANTS:
        raise InvalidInput(f"variant must be one of {', '.join(VARIANTS)}, got {name!r}")
    found = VARIANTS[name]
    if not prior_updates:
        return found
    title = f"{name}, prior {prior_updates}"
    return Variant(title, found.about, {**found.custom, "prior": {"updates": prior_updates}}, found.environment)
