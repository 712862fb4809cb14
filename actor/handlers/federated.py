"""A node's part in federated rounds: training on its own data for an update, and judging models. Data stays here."""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import Field

from parlmesh.errors import DeadlineExceeded, FleetError, Unavailable
from parlmesh.federation.compression import INT8, NONE, TOP_K, ErrorFeedback
from parlmesh.federation.digests import fast_digest
from parlmesh.federation.learning import Part
from parlmesh.federation.model_file import ModelFile
from parlmesh.federation.privacy import clip
from parlmesh.types import Array
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.v1 import tensor_pb2
from parlmesh.wire import struct_to_proto

from ..federation_link import FederationLink
from ..learning_tasks import LearningTasks
from .parameters import Parameters, parse_parameters
from .protocol import Context, Result, RunsIn, Tail

_FEDERATIONS_KEPT = 4
_ENCODINGS = {
    NONE: pb.UPDATE_ENCODING_FLOAT32,
    INT8: pb.UPDATE_ENCODING_INT8,
    TOP_K: pb.UPDATE_ENCODING_TOP_K,
}


class _Common(Parameters):
    federation_id: str = Field(min_length=1, max_length=200)
    task: str = Field(min_length=1, max_length=200)
    settings: dict[str, Any] = Field(default_factory=dict)
    number: int = Field(default=1, ge=1, lt=1 << 53)
    seed: int = Field(default=0, ge=0, lt=1 << 53)


class FitParameters(_Common):
    """What to train, and what the update is bound to."""

    round: int = Field(ge=0, lt=1 << 53)
    base_version: int = Field(ge=1, lt=1 << 53)
    nonce: str = Field(pattern=r"^([0-9a-f]{2}){1,64}$")
    encoding: str = Field(default=NONE, pattern=f"^({NONE}|{INT8}|{TOP_K})$")
    ratio: float = Field(default=0.01, gt=0, le=1)
    clip_norm: float = Field(default=0.0, ge=0)
    noise_multiplier: float = Field(default=0.0, ge=0)


class EvaluateParameters(_Common):
    """What to judge."""

    version: int = Field(ge=1, lt=1 << 53)


@dataclass(slots=True)
class _Kept:
    """What a node keeps of a federation from round to round."""

    local: Mapping[str, Array] = field(default_factory=dict)
    feedback: ErrorFeedback | None = None
    # An update with left-overs or noise in it cannot be made again; it is sent again.
    nonce: str = ""
    data: bytes = b""
    samples: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


class NodeMemory:
    """What federations left on one node; used by both kinds, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def of(self, federation_id: str) -> _Kept:
        """That of one federation; the oldest is forgotten when there are too many."""
        with self._lock:
            kept = self._kept.pop(federation_id, None) or _Kept()
            self._kept[federation_id] = kept
            while len(self._kept) > _FEDERATIONS_KEPT:
                self._kept.popitem(last=False)
            return kept


class FederatedFit:
    """The kind `federated_fit`. The waiting for the receipt is left to the event loop."""

    kind = "federated_fit"
    runs_in = RunsIn.THREAD

    def __init__(self, link: FederationLink, tasks: LearningTasks, node_id: str, memory: NodeMemory) -> None:
        self._link = link
        self._tasks = tasks
        self._node_id = node_id
        self._memory = memory

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context) -> Tail:
        """{federation_id, task, settings, round, base_version, nonce, number, seed, encoding, ratio, clip_norm, ...}"""
        wanted = parse_parameters(FitParameters, self.kind, parameters)
        task = self._tasks.get(wanted.task, wanted.settings)
        kept = self._memory.of(wanted.federation_id)
        model = self._link.model(wanted.federation_id, wanted.base_version, context)
        data: bytes | memoryview
        if kept.nonce == wanted.nonce:
            data, samples, metrics = kept.data, kept.samples, kept.metrics
        else:
            part = Part(self._node_id, wanted.number, wanted.round, wanted.seed, context.check)
            fitted = task.fit({**model.tensors, **kept.local}, part)
            samples, metrics = fitted.samples, fitted.metrics
            kept.local = model.schema.local(fitted.tensors)
            data = _packed(model.schema.difference(fitted.tensors, model.tensors), wanted, kept)
            if wanted.encoding != NONE or wanted.noise_multiplier:
                kept.nonce, kept.data, kept.samples, kept.metrics = wanted.nonce, bytes(data), samples, metrics
        header = _header(self._node_id, wanted, model, data, samples, metrics)
        return Tail(lambda: self._send(header, data))

    async def _send(self, header: pb.UpdateHeader, data: bytes | memoryview) -> Result:
        try:
            number = await self._link.submit(header, data)
        except (Unavailable, DeadlineExceeded):
            raise
        except FleetError as error:
            # The coordinator has said no and knows why; another attempt would be refused too.
            return Result({"refusal": error.reason, "message": error.message})
        return Result({"round": number, "samples": header.samples})


class FederatedEvaluate:
    """The kind `federated_evaluate`."""

    kind = "federated_evaluate"
    runs_in = RunsIn.THREAD

    def __init__(self, link: FederationLink, tasks: LearningTasks, node_id: str, memory: NodeMemory) -> None:
        self._link = link
        self._tasks = tasks
        self._node_id = node_id
        self._memory = memory

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context) -> Result:
        """{federation_id, task, settings, version, number, seed}"""
        wanted = parse_parameters(EvaluateParameters, self.kind, parameters)
        task = self._tasks.get(wanted.task, wanted.settings)
        model = self._link.model(wanted.federation_id, wanted.version, context)
        part = Part(self._node_id, wanted.number, wanted.version, wanted.seed, context.check)
        judged = task.evaluate({**model.tensors, **self._memory.of(wanted.federation_id).local}, part)
        return Result({"samples": judged.samples, "metrics": dict(judged.metrics)})


def _packed(vector: Array, wanted: FitParameters, kept: _Kept) -> bytes | memoryview:
    if wanted.clip_norm:
        vector = clip(vector, wanted.clip_norm)
    if wanted.noise_multiplier:
        deviation = np.float32(wanted.noise_multiplier * wanted.clip_norm)
        vector = vector + deviation * np.random.default_rng().standard_normal(len(vector), np.float32)
    if wanted.encoding == NONE:
        return memoryview(np.ascontiguousarray(vector, "<f4")).cast("B")  # type: ignore[arg-type]
    if kept.feedback is None or len(kept.feedback.residual) != len(vector):
        kept.feedback = ErrorFeedback(len(vector))
    return kept.feedback.encode(vector, wanted.encoding, wanted.ratio)


def _header(
    node_id: str,
    wanted: FitParameters,
    model: ModelFile,
    data: bytes | memoryview,
    samples: int,
    metrics: Mapping[str, float],
) -> pb.UpdateHeader:
    return pb.UpdateHeader(
        federation_id=wanted.federation_id,
        round=wanted.round,
        node_id=node_id,
        base_version=wanted.base_version,
        nonce=bytes.fromhex(wanted.nonce),
        samples=samples,
        digest=fast_digest(data),
        size_bytes=len(data),
        metrics=struct_to_proto({name: float(value) for name, value in metrics.items()}),
        tensors=[
            tensor_pb2.Tensor(name=spec.name, dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=spec.shape)
            for spec in model.schema.joined
        ],
        encoding=_ENCODINGS[wanted.encoding],
    )
