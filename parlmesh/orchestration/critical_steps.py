"""Critical steps: a job's duration when the sub-agents of a group work in parallel.

The sum over stages of the orchestrator's own steps plus those of the slowest sub-agent in the stage's group.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from parlmesh.errors import InvalidInput

from .numpy_or_torch import Values, at_least_zero, like


def critical_steps(stages: Iterable[tuple[float, Sequence[float]]]) -> float:
    """Critical steps of one job; each stage has the orchestrator's steps and those of its group, which may be empty."""
    total = 0.0
    for number, (main, group) in enumerate(stages):
        kind = like([])
        own = at_least_zero(f"main steps of stage {number}", kind.array(f"main steps of stage {number}", main))
        name = f"sub-agent steps of stage {number}"
        others = at_least_zero(name, kind.array(name, list(group)))
        total += float(own) + float(kind.largest(others))
    return total


class CriticalStepsMetric:
    """Critical steps of a batch: arrays or tensors [B, T] and [B, T, N], or ragged lists."""

    def __init__(self, orchestration_overhead: float = 0.0) -> None:
        """`orchestration_overhead` is added to every stage with any steps."""
        if not 0.0 <= orchestration_overhead < float("inf"):
            raise InvalidInput(f"orchestration_overhead must be >= 0 and finite, got {orchestration_overhead}")
        self.orchestration_overhead = orchestration_overhead

    def __call__(self, main_steps: Values, sub_steps: Values) -> Any:
        """Critical steps [B]; for ragged lists, a numpy array."""
        if isinstance(main_steps, (list, tuple)) or isinstance(sub_steps, (list, tuple)):
            return self._ragged(main_steps, sub_steps)
        kind = like([main_steps, sub_steps])
        main = at_least_zero("main_steps", kind.array("main_steps", main_steps))
        group = at_least_zero("sub_steps", kind.array("sub_steps", sub_steps))
        if main.ndim != 2 or group.ndim != 3 or tuple(group.shape[:2]) != tuple(main.shape):
            raise InvalidInput(
                "main_steps must be [B, T] and sub_steps [B, T, N] with the same B and T,"
                f" got {list(main.shape)} and {list(group.shape)}"
            )
        stages = main + kind.largest(group)
        overhead = self.orchestration_overhead * (stages > 0)
        return (stages + overhead).sum(-1)

    def _ragged(self, main_steps: Any, sub_steps: Any) -> Any:
        if len(main_steps) != len(sub_steps):
            raise InvalidInput(f"main_steps has {len(main_steps)} jobs, sub_steps {len(sub_steps)}")
        totals = []
        for job, (main, groups) in enumerate(zip(main_steps, sub_steps, strict=True)):
            if len(main) != len(groups):
                raise InvalidInput(f"job {job}: main_steps has {len(main)} stages, sub_steps {len(groups)}")
            stages = list(zip(main, groups, strict=True))
            steps = critical_steps(stages)
            busy = sum(1 for own, group in stages if own > 0 or any(each > 0 for each in group))
            totals.append(steps + self.orchestration_overhead * busy)
        return like([]).array("critical steps", totals)
