"""The SDK: hand tasks to a fleet and get their outcomes. Needs numpy and gRPC, never torch."""

from .actors import ActorInfo, ActorState
from .config import ClientConfig
from .controller import PARLController
from .outcomes import Outcome, OutcomeState
from .policy import PolicyUpdate
from .requests import Placement, Priority, TaskRequest
from .statistics import ClientCounts, PARLMetrics, PARLStats

__all__ = [
    "ActorInfo",
    "ActorState",
    "ClientConfig",
    "ClientCounts",
    "Outcome",
    "OutcomeState",
    "PARLController",
    "PARLMetrics",
    "PARLStats",
    "Placement",
    "PolicyUpdate",
    "Priority",
    "TaskRequest",
]
