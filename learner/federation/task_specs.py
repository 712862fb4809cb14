"""The tasks that a federation gives its nodes. Virtual nodes of one host share tasks if their models are small."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parlmesh.errors import InvalidInput
from parlmesh.federation.config import FederationConfig
from parlmesh.federation.privacy import part_deviation
from parlmesh.federation.secure.fixed_point import FixedPoint
from parlmesh.federation.virtual_nodes import host_of
from parlmesh.v1 import task_pb2 as pb
from parlmesh.wire import payload_to_proto, struct_from_proto, struct_to_proto

from .rules.events import Evaluated
from .rules.masked_round import MaskedRound
from .rules.records import Assignment
from .rules.update_checks import evaluation_in

FIT, EVALUATE, MASK = "federated_fit", "federated_evaluate", "federated_mask"
# A task occupies a slot and is repeated when its actor dies, so it must not have too many nodes.
_MOST_NODES = 32
_MOST_BYTES = 8 << 20
_ATTEMPTS = 3
_LONGEST_TEXT = 200


@dataclass(frozen=True, slots=True)
class NodesTask:
    """A task and its nodes; `number` is the round, or the version to evaluate."""

    spec: pb.TaskSpec
    nodes: tuple[str, ...]
    number: int
    # The nonce that each node's update is bound to, if the task trains.
    nonces: Mapping[str, str] = field(default_factory=dict)
    # The step of a secure round.
    step: str = ""


def fit_tasks(
    federation_id: str,
    config: FederationConfig,
    size: int,
    assignments: Sequence[Assignment],
    masking: MaskedRound | None = None,
) -> list[NodesTask]:
    """Tasks that train on these nodes and send each one's update with its nonce. An update has `size` numbers.

    In a secure round, each node gets the others' shares from `masking`.
    """
    parameters = _common(federation_id, config)
    parameters |= {"encoding": config.compression.encoding, "ratio": config.compression.ratio}
    if masking is not None:
        parameters["masks"] = masks_of(config, masking)
    if config.privacy.mode == "local":
        parameters |= {"clip_norm": config.privacy.clip_norm, "noise_multiplier": config.privacy.noise_multiplier}
    most = max(1, min(_MOST_NODES, _MOST_BYTES // (4 * size)))
    found = []
    # In a resumed buffer, nodes may have been asked in different rounds.
    for number, base_version in sorted({(each.round, each.base_version) for each in assignments}):
        asked = [each for each in assignments if (each.round, each.base_version) == (number, base_version)]
        members: dict[str, dict[str, Any]] = {
            each.node_id: {"node_id": each.node_id, "number": each.number, "nonce": each.nonce} for each in asked
        }
        if masking is not None:
            for node, member in members.items():
                member["shares"] = masking.sealed_for(node)
        own = {**parameters, "round": number, "base_version": base_version}
        found += grouped_tasks(FIT, own, config.round_seconds, asked, members, most=most)
    return found


def grouped_tasks(
    kind: str,
    parameters: Mapping[str, Any],
    seconds: float,
    assignments: Sequence[Assignment],
    members: Mapping[str, Mapping[str, Any]],
    *,
    most: int = _MOST_NODES,
    step: str = "",
) -> list[NodesTask]:
    """Tasks of one round; each node of these assignments is a member of one of them."""
    shared = _shared(kind, parameters, seconds)
    nonces = {each.node_id: each.nonce for each in assignments}
    return [
        NodesTask(
            _with_members(shared, nodes, [members[node] for node in nodes]),
            nodes,
            assignments[0].round,
            {node: nonces[node] for node in nodes},
            step,
        )
        for nodes in _grouped(list(nonces), most)
    ]


def masks_of(config: FederationConfig, masking: MaskedRound) -> dict[str, Any]:
    """How a secure round encodes numbers. In a private federation, nodes clip, and all weigh the same."""
    privacy = config.privacy
    if privacy.mode == "none":
        value, weight = config.secure.largest_value, config.gate.max_samples
        return {"nodes": len(masking.shares), "largest_value": value, "largest_weight": weight, "clip_norm": 0.0}
    found: dict[str, Any] = {
        "nodes": len(masking.shares),
        "largest_value": privacy.clip_norm,
        "largest_weight": 1,
        "clip_norm": privacy.clip_norm,
    }
    if privacy.mode == "distributed":
        found |= {"noise_multiplier": privacy.noise_multiplier, "uncounted_nodes": privacy.uncounted_nodes}
    return found


def numbers_of(config: FederationConfig, masking: MaskedRound) -> FixedPoint:
    """This encoding, for reading the sum."""
    masks, privacy = masks_of(config, masking), config.privacy
    deviation = 0.0
    if privacy.mode == "distributed":
        counted = masking.threshold - privacy.uncounted_nodes
        deviation = part_deviation(privacy.noise_multiplier, privacy.clip_norm, counted)
    return FixedPoint(masks["nodes"], masks["largest_value"], masks["largest_weight"], deviation)


def evaluation_tasks(
    federation_id: str, config: FederationConfig, version: int, numbered: Mapping[str, int]
) -> list[NodesTask]:
    """Tasks that evaluate this version on these nodes, each with its number."""
    shared = _shared(EVALUATE, {**_common(federation_id, config), "version": version}, config.evaluation.seconds)
    found = []
    for nodes in _grouped(list(numbered), _MOST_NODES):
        members = [{"node_id": node, "number": numbered[node]} for node in nodes]
        found.append(NodesTask(_with_members(shared, nodes, members), nodes, version))
    return found


def failures_in(result: pb.Payload, nodes: Sequence[str]) -> dict[str, str]:
    """Which of these nodes failed to send an update, and why; usually none, and then nothing is unpacked."""
    if "failed" not in result.parameters.fields:
        return {}
    failed = struct_from_proto(result.parameters)["failed"]
    if not isinstance(failed, Mapping):
        return dict.fromkeys(nodes, "its list of failures cannot be read")
    return {node: str(failed[node])[:_LONGEST_TEXT] for node in nodes if node in failed}


def evaluations_in(result: pb.Payload, nodes: Sequence[str]) -> list[Evaluated]:
    """The results of these nodes. A malformed answer is marked as bad and counts only against its node."""
    answers = struct_from_proto(result.parameters).get("judged")
    found = []
    for node in nodes:
        try:
            samples, metrics = evaluation_in(answers.get(node) if isinstance(answers, Mapping) else None)
        except InvalidInput as error:
            found.append(Evaluated(node, 0, {}, f"{error.reason}: {error.message}"[:_LONGEST_TEXT]))
        else:
            found.append(Evaluated(node, samples, metrics))
    return found


def _common(federation_id: str, config: FederationConfig) -> dict[str, Any]:
    return {
        "federation_id": federation_id,
        "task": config.task,
        "settings": config.settings,
        "seed": config.seed,
    }


def _grouped(nodes: Sequence[str], most: int) -> list[tuple[str, ...]]:
    """Groups nodes of one host, at most this many together."""
    found = []
    for _, members in itertools.groupby(sorted(nodes, key=lambda node: (host_of(node), node)), key=host_of):
        together = tuple(members)
        found += [together[start : start + most] for start in range(0, len(together), most)]
    return found


def _shared(kind: str, parameters: Mapping[str, Any], seconds: float) -> pb.TaskSpec:
    """The common part of tasks that are submitted together."""
    spec = pb.TaskSpec(
        kind=kind, payload=payload_to_proto(parameters), priority=pb.PRIORITY_NORMAL, max_attempts=_ATTEMPTS
    )
    # No task may take longer than the round waits.
    spec.run_timeout.FromNanoseconds(round(seconds * 1e9))
    spec.queue_timeout.FromNanoseconds(round(seconds * 1e9))
    return spec


def _with_members(shared: pb.TaskSpec, nodes: Sequence[str], members: Sequence[Mapping[str, Any]]) -> pb.TaskSpec:
    spec = pb.TaskSpec()
    spec.CopyFrom(shared)
    spec.placement.node_id = host_of(nodes[0])
    spec.payload.parameters.MergeFrom(struct_to_proto({"members": list(members)}))
    return spec
