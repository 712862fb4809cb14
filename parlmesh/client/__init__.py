"""The SDK: hand tasks to a fleet and get their outcomes. Needs numpy and gRPC, never torch."""

from .config import ClientConfig
from .controller import PARLController
from .experience import Step
from .federated import GlobalModel, PARLFederatedOrchestrator
from .info import ActorInfo, ActorState, ClientCounts, PARLMetrics, PARLStats
from .learner import PolicyUpdate
from .outcomes import Outcome, OutcomeState
from .requests import Placement, Priority, TaskRequest

__all__ = [
    "ActorInfo",
    "ActorState",
    "ClientConfig",
    "ClientCounts",
    "GlobalModel",
    "Outcome",
    "OutcomeState",
    "PARLController",
    "PARLFederatedOrchestrator",
    "PARLMetrics",
    "PARLStats",
    "Placement",
    "PolicyUpdate",
    "Priority",
    "Step",
    "TaskRequest",
]
