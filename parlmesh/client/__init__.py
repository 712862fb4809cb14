"""The SDK: submit tasks to a fleet and get their outcomes. Needs numpy and gRPC, never torch."""

from .config import ClientConfig
from .controller import PARLController
from .fleet_info import ActorInfo, ActorState, ClientCounts, PARLMetrics, PARLStats
from .learner.federated_round import GlobalModel, PARLFederatedOrchestrator
from .learner.learner_calls import PolicyUpdate
from .learner.own_steps import Step
from .outcomes import Outcome, OutcomeState
from .task_request import Placement, Priority, TaskRequest

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
