"""Nodes' part in federated rounds: training on their own data, and evaluating models. Data never leaves the node."""

import secrets
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from pydantic import Field, model_validator

from parlmesh.digests import fast_digest
from parlmesh.errors import FailedPrecondition
from parlmesh.exception_text import cut, sentence_at
from parlmesh.federation.compression import INT8, NONE, TOP_K, ErrorFeedback
from parlmesh.federation.learning_task import LearningTask, Part
from parlmesh.federation.model_file import ModelFile
from parlmesh.federation.privacy import clip, noise_stream, part_deviation
from parlmesh.federation.secure.fixed_point import LARGEST_WEIGHT, MOST_NODES, FixedPoint
from parlmesh.handlers import Cancelled, Context, Result, RunsIn, Tail
from parlmesh.types import Array
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.wire import struct_to_proto

from ..federation.local_nodes import Kept, Participants
from ..federation.update_uploads import Update
from .parameters import Parameters

NONCE = r"^([0-9a-f]{2}){1,64}$"
_MOST_MEMBERS = 1_000
_LONGEST_FAILURE = 300
_ENCODINGS = {
    NONE: pb.UPDATE_ENCODING_FLOAT32,
    INT8: pb.UPDATE_ENCODING_INT8,
    TOP_K: pb.UPDATE_ENCODING_TOP_K,
}


class Member(Parameters):
    """A node that evaluates."""

    node_id: str = Field(min_length=1, max_length=128)
    number: int = Field(ge=1, lt=1 << 53)


class Trainee(Member):
    """A node that trains; its update is bound to the nonce."""

    nonce: str = Field(pattern=NONCE)
    # The other nodes' shares in a secure sum, sealed for this node.
    shares: dict[str, str] = Field(default_factory=dict, max_length=MOST_NODES)


class Masks(Parameters):
    """How the numbers of a secure sum are encoded."""

    nodes: int = Field(ge=1, le=MOST_NODES)
    largest_value: float = Field(gt=0, lt=1e30)
    largest_weight: int = Field(ge=1, le=LARGEST_WEIGHT)
    clip_norm: float = Field(default=0.0, ge=0, lt=1e30)
    # Standard deviation of the noise in the whole sum; every node adds a part of it.
    noise_multiplier: float = Field(default=0.0, ge=0, le=1_000)
    uncounted_nodes: int = Field(default=0, ge=0, lt=MOST_NODES)

    @model_validator(mode="after")
    def _noise_has_a_scale(self) -> Self:
        if self.noise_multiplier and not self.clip_norm:
            raise ValueError("noise_multiplier needs a clip_norm > 0")
        return self


class _Common(Parameters):
    federation_id: str = Field(min_length=1, max_length=200)
    task: str = Field(min_length=1, max_length=200)
    settings: dict[str, Any] = Field(default_factory=dict)
    seed: int = Field(default=0, ge=0, lt=1 << 53)


class FitParameters(_Common):
    """The parameters of training: the task and the nodes."""

    round: int = Field(ge=0, lt=1 << 53)
    base_version: int = Field(ge=1, lt=1 << 53)
    members: list[Trainee] = Field(min_length=1, max_length=_MOST_MEMBERS)
    encoding: str = Field(default=NONE, pattern=f"^({NONE}|{INT8}|{TOP_K})$")
    ratio: float = Field(default=0.01, gt=0, le=1)
    clip_norm: float = Field(default=0.0, ge=0, lt=1e30)
    noise_multiplier: float = Field(default=0.0, ge=0, le=1_000)
    masks: Masks | None = None

    @model_validator(mode="after")
    def _noise_has_a_scale(self) -> Self:
        if self.noise_multiplier and not self.clip_norm:
            raise ValueError("noise_multiplier needs a clip_norm > 0")
        return self


class EvaluateParameters(_Common):
    """The parameters of an evaluation: the task and the nodes."""

    version: int = Field(ge=1, lt=1 << 53)
    members: list[Member] = Field(min_length=1, max_length=_MOST_MEMBERS)


class FederatedFit:
    """The kind `federated_fit`. The event loop waits for the receipts, not the slot."""

    kind = "federated_fit"
    runs_in = RunsIn.THREAD

    def __init__(self, participants: Participants) -> None:
        self._participants = participants

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context) -> Tail:
        """{federation_id, task, settings, round, base_version, members: [{node_id, number, nonce}], seed, ...}

        A node that fails does not keep the others from sending; the attempt fails when all of them do.
        """
        wanted = FitParameters.of(self.kind, parameters)
        self._participants.check(member.node_id for member in wanted.members)
        floor = self._participants.floor
        asked = wanted.masks or wanted
        floor.check_fit(asked.clip_norm, asked.noise_multiplier)
        if wanted.masks is None:
            floor.check_sum(1)
        task = self._participants.tasks.get(wanted.task, wanted.settings)
        model = self._participants.link.model(wanted.federation_id, wanted.base_version, context)
        updates: list[Update] = []
        failed: dict[str, str] = {}
        for member in wanted.members:
            context.check()
            try:
                updates.append(self._train(task, model, wanted, member, context))
            except Cancelled:
                raise
            except Exception as error:
                failed[member.node_id] = cut(sentence_at(error), _LONGEST_FAILURE)
                if len(failed) == len(wanted.members):
                    raise
        return Tail(lambda: self._send(updates, failed))

    def _train(
        self, task: LearningTask, model: ModelFile, wanted: FitParameters, member: Trainee, context: Context
    ) -> Update:
        kept = self._participants.kept(wanted.federation_id, member.node_id)
        data: bytes | memoryview
        if wanted.masks is not None:
            with kept.turn:
                data = self._masked(task, model, wanted, wanted.masks, member, kept, context)
            # Sample counts and metrics would reveal something about this node alone.
            return Update(_header(wanted, member, model, data, 1, {}), data)
        if kept.nonce == member.nonce:
            data, samples, metrics = kept.data, kept.samples, kept.metrics
        else:
            part = Part(member.node_id, member.number, wanted.round, wanted.seed, context.check)
            fitted = task.fit({**model.tensors, **kept.local}, part)
            samples, metrics = fitted.samples, fitted.metrics
            if wanted.noise_multiplier:
                # Sample counts and metrics would be sent without noise.
                samples, metrics = 1, {}
                self._participants.floor.spend(member.node_id, wanted.noise_multiplier)
            kept.local = model.schema.local(fitted.tensors)
            data = _packed(model.schema.difference(fitted.tensors, model.tensors), wanted, kept)
            if wanted.encoding != NONE or wanted.noise_multiplier:
                kept.nonce, kept.data, kept.samples, kept.metrics = member.nonce, bytes(data), samples, metrics
        return Update(_header(wanted, member, model, data, samples, metrics), data)

    def _masked(
        self,
        task: LearningTask,
        model: ModelFile,
        wanted: FitParameters,
        masks: Masks,
        member: Trainee,
        kept: Kept,
        context: Context,
    ) -> memoryview:
        """The update, masked for a secure sum. Made once: two under the same masks would reveal their difference."""
        masking = kept.masking_of(member.nonce)
        masking.accept({node: bytes.fromhex(share) for node, share in member.shares.items()})
        if masking.masked is None:
            part = Part(member.node_id, member.number, wanted.round, wanted.seed, context.check)
            fitted = task.fit({**model.tensors, **kept.local}, part)
            kept.local = model.schema.local(fitted.tensors)
            vector = model.schema.difference(fitted.tensors, model.tensors)
            numbers = FixedPoint(
                masking.summed, masks.largest_value, masks.largest_weight, _noise_part(masks, masking.threshold)
            )
            if masks.clip_norm:
                finite = np.nan_to_num(vector, nan=0.0, posinf=0.0, neginf=0.0)
                # Rounding must not make it longer than the guarantee allows.
                vector = clip(finite, numbers.room(masks.clip_norm, len(finite)))
            noise = None
            if masks.noise_multiplier:
                self._participants.floor.spend(member.node_id, masks.noise_multiplier, in_parts=True)
                noise = _whole_noise(numbers, len(vector))
            masking.mask(numbers.words(vector, fitted.samples, noise))
        assert masking.masked is not None
        return masking.masked.view(np.uint8).data

    async def _send(self, updates: list[Update], failed: dict[str, str]) -> Result:
        receipts = await self._participants.link.submit(updates)
        for update, receipt in zip(updates, receipts, strict=True):
            kept = self._participants.kept(update.header.federation_id, update.header.node_id)
            if kept.feedback is not None and kept.nonce == update.header.nonce.hex():
                kept.feedback.settle(taken=receipt.error is None)
            if receipt.error is not None:
                # The coordinator would refuse another attempt too.
                failed[update.header.node_id] = f"refused: {receipt.error.reason}"
        return Result({"sent": len(updates), **({"failed": failed} if failed else {})})


class FederatedEvaluate:
    """The kind `federated_evaluate`."""

    kind = "federated_evaluate"
    runs_in = RunsIn.THREAD

    def __init__(self, participants: Participants) -> None:
        self._participants = participants

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context) -> Result:
        """{federation_id, task, settings, version, members: [{node_id, number}], seed}"""
        wanted = EvaluateParameters.of(self.kind, parameters)
        self._participants.check(member.node_id for member in wanted.members)
        self._participants.floor.check_evaluation()
        task = self._participants.tasks.get(wanted.task, wanted.settings)
        model = self._participants.link.model(wanted.federation_id, wanted.version, context)
        evaluated: dict[str, dict[str, Any]] = {}
        for member in wanted.members:
            context.check()
            part = Part(member.node_id, member.number, wanted.version, wanted.seed, context.check)
            kept = self._participants.kept(wanted.federation_id, member.node_id)
            found = task.evaluate({**model.tensors, **kept.local}, part)
            evaluated[member.node_id] = {"samples": found.samples, "metrics": dict(found.metrics)}
        # The key is older than the word evaluation, and learners of earlier releases read it.
        return Result({"judged": evaluated})


def noised(vector: Array, clip_norm: float, noise_multiplier: float) -> Array:
    """All that the learner ever sees of a private node's training. Every update gets fresh noise."""
    shortened = clip(np.nan_to_num(vector, nan=0.0, posinf=0.0, neginf=0.0), clip_norm)
    deviation = np.float32(noise_multiplier * clip_norm)
    noise = noise_stream(secrets.token_bytes(32)).standard_normal(len(vector), np.float32)
    return np.asarray(shortened + deviation * noise)


def _noise_part(masks: Masks, threshold: int) -> float:
    """Deviation of this node's noise, enough for `threshold` updates: nodes refuse to unmask a sum of fewer."""
    if not masks.noise_multiplier:
        return 0.0
    if masks.uncounted_nodes >= threshold:
        raise FailedPrecondition(
            f"a sum of {threshold} nodes cannot leave out the noise of {masks.uncounted_nodes}", reason="SECURE_SUM"
        )
    return part_deviation(masks.noise_multiplier, masks.clip_norm, threshold - masks.uncounted_nodes)


def _whole_noise(numbers: FixedPoint, size: int) -> Array:
    from parlmesh.federation.secure.discrete_gaussian import KEY_BYTES, DiscreteGaussian

    return DiscreteGaussian(numbers.noise_bits, secrets.token_bytes(KEY_BYTES)).draw(size)


def _packed(vector: Array, wanted: FitParameters, kept: Kept) -> bytes | memoryview:
    if wanted.noise_multiplier:
        vector = noised(vector, wanted.clip_norm, wanted.noise_multiplier)
    if wanted.encoding == NONE:
        return np.ascontiguousarray(vector, "<f4").view(np.uint8).data
    if kept.feedback is None or len(kept.feedback.residual) != len(vector):
        kept.feedback = ErrorFeedback(len(vector))
    return kept.feedback.encode(vector, wanted.encoding, wanted.ratio)


def _header(
    wanted: FitParameters,
    member: Trainee,
    model: ModelFile,
    data: bytes | memoryview,
    samples: int,
    metrics: Mapping[str, float],
) -> pb.UpdateHeader:
    return pb.UpdateHeader(
        federation_id=wanted.federation_id,
        round=wanted.round,
        node_id=member.node_id,
        base_version=wanted.base_version,
        nonce=bytes.fromhex(member.nonce),
        samples=samples,
        digest=fast_digest(data),
        size_bytes=len(data),
        metrics=struct_to_proto({name: float(value) for name, value in metrics.items()}),
        schema_digest=model.schema.digest,
        encoding=pb.UPDATE_ENCODING_MASKED if wanted.masks else _ENCODINGS[wanted.encoding],
    )
