"""The reward of an orchestrator: the job's outcome, plus auxiliary terms that fade during training.

Report form (default): lambda1 · r_parallel + lambda2 · r_finish + r_perf.
Blog form: lambda · r_parallel + (1 − lambda) · r_perf.
r_perf is success times quality; r_parallel is the share of the allowed sub-agents that were created, r_finish the share
of assigned sub-tasks that were completed. Both lambdas end at their final value, 0 unless set.
"""

import math
from typing import Any, Literal

from parlmesh.errors import InvalidInput

from .numpy_or_torch import Values, at_least_zero, check_lengths, like
from .reward_schedules import Shape, anneal

MAX_SUBAGENTS = 100


class PARLReward:
    """Rewards of a batch of episodes: the sum and every term."""

    def __init__(
        self,
        lambda1_init: float = 0.1,
        lambda1_final: float = 0.0,
        lambda2_init: float = 0.1,
        lambda2_final: float = 0.0,
        total_training_steps: int = 10_000,
        device: str | None = None,
        *,
        lambda_init: float | None = None,
        lambda_final: float | None = None,
        form: Literal["report", "blog"] = "report",
        schedule: Shape = "linear",
    ) -> None:
        """`lambda_init` and `lambda_final` set both lambdas at once; `device` only applies to tensors."""
        if form not in ("report", "blog"):
            raise InvalidInput(f"form is {form!r}; allowed are report, blog")
        # Report a mistake here, not at the first episode.
        anneal(0.0, 0.0, 0, total_training_steps, schedule)
        self.form, self.schedule, self.device = form, schedule, device
        self.total_training_steps = total_training_steps
        self.lambda1_init = _weight("lambda1_init", lambda1_init if lambda_init is None else lambda_init)
        self.lambda1_final = _weight("lambda1_final", lambda1_final if lambda_final is None else lambda_final)
        self.lambda2_init = _weight("lambda2_init", lambda2_init if lambda_init is None else lambda_init)
        self.lambda2_final = _weight("lambda2_final", lambda2_final if lambda_final is None else lambda_final)

    def anneal_lambda1(self, training_step: float) -> float:
        """The weight of r_parallel."""
        return anneal(self.lambda1_init, self.lambda1_final, training_step, self.total_training_steps, self.schedule)

    def anneal_lambda2(self, training_step: float) -> float:
        """The weight of r_finish."""
        return anneal(self.lambda2_init, self.lambda2_final, training_step, self.total_training_steps, self.schedule)

    anneal_lambda = anneal_lambda1

    def compute_instantiation_reward(self, num_subagents: Values, max_subagents: int = MAX_SUBAGENTS) -> Any:
        """r_parallel: sub-agents created as a share of those allowed, at most 1."""
        if max_subagents < 1:
            raise InvalidInput(f"max_subagents must be >= 1, got {max_subagents}")
        kind = like([num_subagents], self.device)
        made = at_least_zero("num_subagents", kind.array("num_subagents", num_subagents))
        return kind.clip(made / max_subagents, 0.0, 1.0)

    def compute_finish_reward(self, completed_subtasks: Values, assigned_subtasks: Values) -> Any:
        """r_finish: completed sub-tasks as a share of the assigned ones; 0 if none was assigned."""
        kind = like([completed_subtasks, assigned_subtasks], self.device)
        completed = at_least_zero("completed_subtasks", kind.array("completed_subtasks", completed_subtasks))
        assigned = at_least_zero("assigned_subtasks", kind.array("assigned_subtasks", assigned_subtasks))
        check_lengths(completed_subtasks=completed, assigned_subtasks=assigned)
        if bool((completed > assigned).any()):
            raise InvalidInput("completed_subtasks must not be above assigned_subtasks")
        share = completed / kind.where(assigned > 0, assigned, assigned + 1)
        return kind.clip(share, 0.0, 1.0)

    def compute_task_quality(self, trajectory_features: Values) -> Any:
        """Quality from features [B, F]: their mean, clipped to 0..1."""
        kind = like([trajectory_features], self.device)
        return kind.clip(kind.mean(kind.array("trajectory_features", trajectory_features)), 0.0, 1.0)

    def forward(self, r_parallel: Values, r_finish: Values, r_perf: Values, training_step: float) -> Any:
        """The sum of the terms at a training step."""
        kind = like([r_parallel, r_finish, r_perf], self.device)
        parallel, finish, performance = (
            kind.array(name, value)
            for name, value in (("r_parallel", r_parallel), ("r_finish", r_finish), ("r_perf", r_perf))
        )
        check_lengths(r_parallel=parallel, r_finish=finish, r_perf=performance)
        first, second = self.anneal_lambda1(training_step), self.anneal_lambda2(training_step)
        if self.form == "blog":
            return first * parallel + (1 - first) * performance
        return first * parallel + second * finish + performance

    __call__ = forward

    def compute_full_reward(
        self,
        num_subagents: Values,
        trajectory_features: Values = None,
        success: Values = 1.0,
        training_step: float = 0,
        max_subagents: int = MAX_SUBAGENTS,
        completed_subtasks: Values = None,
        assigned_subtasks: Values = None,
        *,
        quality: Values = None,
    ) -> dict[str, Any]:
        """Every term of every episode. Quality comes from features [B, F] or, preferably, from `quality` [B] in 0..1.

        r_finish is 0 if sub-tasks are not given: an unmeasured rate earns nothing.
        """
        if (trajectory_features is None) == (quality is None):
            raise InvalidInput("give either trajectory_features or quality")
        given = (num_subagents, trajectory_features, success, quality, completed_subtasks, assigned_subtasks)
        kind = like(given, self.device)
        parallel = self.compute_instantiation_reward(kind.array("num_subagents", num_subagents), max_subagents)
        if quality is None:
            found = self.compute_task_quality(kind.array("trajectory_features", trajectory_features))
        else:
            found = kind.clip(kind.array("quality", quality), 0.0, 1.0)
        succeeded = kind.clip(kind.array("success", success), 0.0, 1.0)
        check_lengths(num_subagents=parallel, quality=found, success=succeeded)
        performance = succeeded * found
        finish = kind.zeros_like(parallel)
        if completed_subtasks is not None and assigned_subtasks is not None:
            finish = self.compute_finish_reward(
                kind.array("completed_subtasks", completed_subtasks),
                kind.array("assigned_subtasks", assigned_subtasks),
            )
            check_lengths(num_subagents=parallel, completed_subtasks=finish)
        first, second = self.anneal_lambda1(training_step), self.anneal_lambda2(training_step)
        return {
            "total_reward": self.forward(parallel, finish, performance, training_step),
            "r_parallel": parallel,
            "r_finish": finish,
            "r_perf": performance,
            "lambda1": first,
            "lambda2": second,
            "lambda_aux": first,
            "instantiation_component": first * parallel,
            "finish_component": 0.0 * finish if self.form == "blog" else second * finish,
            "task_component": (1 - first) * performance if self.form == "blog" else performance,
            "task_quality": found,
        }


def _weight(name: str, value: float) -> float:
    if not (math.isfinite(value) and 0.0 <= value <= 1.0):
        raise InvalidInput(f"{name} must be from 0 to 1, got {value}")
    return float(value)
