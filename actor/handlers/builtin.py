"""The built-in kinds of tasks, by name, and what their handlers need from their actor."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from parlmesh.handlers import Handler

from ..federation.local_nodes import Participants
from ..learner.policy_client import PolicyLink
from ..learner.trajectory_uploads import Uploads
from ..metrics import ActorMetrics
from ..session.actor_identity import ActorIdentity
from .demo import Echo, Fail, Noop, Sleep
from .evaluate import Evaluate
from .federated import FederatedEvaluate, FederatedFit
from .federated_mask import FederatedMask
from .match import Match
from .rollout import Rollout


@dataclass(frozen=True, slots=True)
class HandlerResources:
    """The parts of its actor that a handler may need."""

    identity: ActorIdentity
    policies: PolicyLink
    uploads: Uploads
    metrics: ActorMetrics
    participants: Participants


HANDLERS: Mapping[str, Callable[[HandlerResources], Handler]] = {
    "echo": lambda resources: Echo(),
    "evaluate": lambda resources: Evaluate(resources.policies),
    "fail": lambda resources: Fail(),
    "federated_evaluate": lambda resources: FederatedEvaluate(resources.participants),
    "federated_fit": lambda resources: FederatedFit(resources.participants),
    "federated_mask": lambda resources: FederatedMask(resources.participants),
    "match": lambda resources: Match(resources.policies),
    "noop": lambda resources: Noop(),
    "rollout": lambda resources: Rollout(
        resources.policies,
        resources.uploads,
        actor_id=resources.identity.actor_id,
        incarnation=lambda: resources.identity.at_learner,
        metrics=resources.metrics,
    ),
    "sleep": lambda resources: Sleep(),
}
