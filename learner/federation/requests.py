"""The tasks that a federation asks of its nodes."""

from typing import Any

from parlmesh.federation.config import FederationConfig
from parlmesh.v1 import task_pb2 as pb
from parlmesh.wire import payload_to_proto

from .records import Assignment


def fit_spec(federation_id: str, config: FederationConfig, assignment: Assignment) -> pb.TaskSpec:
    """Train on this node, and send the update with this nonce."""
    parameters: dict[str, Any] = {
        "federation_id": federation_id,
        "task": config.task,
        "settings": config.settings,
        "round": assignment.round,
        "base_version": assignment.base_version,
        "nonce": assignment.nonce,
        "number": assignment.number,
        "seed": config.seed,
        "encoding": config.compression.encoding,
        "ratio": config.compression.ratio,
    }
    if config.privacy.mode == "local":
        parameters["clip_norm"] = config.privacy.clip_norm
        parameters["noise_multiplier"] = config.privacy.noise_multiplier
    return _pinned("federated_fit", parameters, assignment.node_id, config.round_seconds)


def evaluation_spec(
    federation_id: str, config: FederationConfig, version: int, node_id: str, number: int
) -> pb.TaskSpec:
    """Judge this version on this node."""
    parameters: dict[str, Any] = {
        "federation_id": federation_id,
        "task": config.task,
        "settings": config.settings,
        "version": version,
        "number": number,
        "seed": config.seed,
    }
    return _pinned("federated_evaluate", parameters, node_id, config.evaluation.seconds)


def _pinned(kind: str, parameters: dict[str, Any], node_id: str, seconds: float) -> pb.TaskSpec:
    spec = pb.TaskSpec(
        kind=kind,
        payload=payload_to_proto(parameters),
        priority=pb.PRIORITY_NORMAL,
        placement=pb.Placement(node_id=node_id),
        max_attempts=3,
    )
    # Nobody waits longer than the round does.
    spec.run_timeout.FromNanoseconds(round(seconds * 1e9))
    spec.queue_timeout.FromNanoseconds(round(seconds * 1e9))
    return spec
