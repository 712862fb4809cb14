"""Parallel-agent reinforcement learning: the reward, the latency metric and the budgets of an orchestrator.

numpy in, numpy out; torch in, torch out, on its device. Importing this package does not import torch.
"""

from .budget import Budget, BudgetExceeded
from .critical_steps import CriticalStepsMetric, critical_steps
from .reward import PARLReward
from .reward_schedules import anneal

__all__ = ["Budget", "BudgetExceeded", "CriticalStepsMetric", "PARLReward", "anneal", "critical_steps"]
