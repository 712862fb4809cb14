"""The limits of a job: critical steps, sub-agents and coordinated steps, counted as they are spent."""

import math
from collections.abc import Sequence

from parlmesh.errors import InvalidInput

from .critical_steps import critical_steps


class BudgetExceeded(Exception):
    """A stage that exceeds the budget; none of it was counted."""


class Budget:
    """Counts one job. A stage that would exceed a limit is refused as a whole."""

    def __init__(self, critical_steps: float = 1_500, sub_agents: int = 100, coordinated_steps: float = 1_500) -> None:
        limits = {"critical_steps": critical_steps, "sub_agents": sub_agents, "coordinated_steps": coordinated_steps}
        for name, limit in limits.items():
            # Written so that NaN is refused too: comparisons with NaN are false.
            if not 0 < limit < math.inf:
                raise InvalidInput(f"{name} must be > 0 and finite, got {limit}")
        self._limits = limits
        self._spent = dict.fromkeys(limits, 0.0)

    @property
    def spent(self) -> dict[str, float]:
        """The amount spent, by limit."""
        return dict(self._spent)

    @property
    def left(self) -> dict[str, float]:
        """The amount left, by limit."""
        return {name: limit - self._spent[name] for name, limit in self._limits.items()}

    def create(self, sub_agents: int = 1) -> None:
        """Counts new sub-agents."""
        if sub_agents < 0:
            raise InvalidInput(f"sub_agents must be >= 0, got {sub_agents}")
        self._spend({"sub_agents": sub_agents})

    def create_in_a_stage(self) -> None:
        """Counts one new sub-agent and the step that creates it: both or neither."""
        self._spend({"sub_agents": 1, "critical_steps": 1, "coordinated_steps": 1})

    def check_stage(self, main: float, group: Sequence[float] = ()) -> None:
        """Raises like `stage`, but counts nothing."""
        self._check(_stage_costs(main, group))

    def stage(self, main: float, group: Sequence[float] = ()) -> None:
        """Counts one stage: the orchestrator's own steps and those of each sub-agent in its group."""
        self._spend(_stage_costs(main, group))

    def _spend(self, costs: dict[str, float]) -> None:
        self._check(costs)
        for name, cost in costs.items():
            self._spent[name] += cost

    def _check(self, costs: dict[str, float]) -> None:
        for name, cost in costs.items():
            if self._spent[name] + cost > self._limits[name]:
                raise BudgetExceeded(
                    f"{name}: {self._spent[name]:g} spent plus {cost:g} more exceeds the limit {self._limits[name]:g}"
                )


def _stage_costs(main: float, group: Sequence[float]) -> dict[str, float]:
    return {"critical_steps": critical_steps([(main, group)]), "coordinated_steps": main + sum(group)}
