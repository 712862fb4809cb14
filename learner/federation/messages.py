"""Converts between a federation's records and protos."""

from collections.abc import Sequence

from parlmesh.config import effective
from parlmesh.errors import InvalidInput
from parlmesh.federation.schema import TensorSpec
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.v1 import tensor_pb2
from parlmesh.wire import struct_from_proto, struct_to_proto

from .coordinator import Federation
from .model_versions import StoredModel
from .rules.records import FederationState, Offer, RoundRecord, RoundState
from .rules.update_checks import MASKED, finite_metrics
from .updates.update_intake import UpdateAbout

_STATES = {
    FederationState.RUNNING: pb.FEDERATION_STATE_RUNNING,
    FederationState.FINISHED: pb.FEDERATION_STATE_FINISHED,
    FederationState.STOPPED: pb.FEDERATION_STATE_STOPPED,
    FederationState.FAILED: pb.FEDERATION_STATE_FAILED,
}
_ROUND_STATES = {
    RoundState.COLLECTING: pb.ROUND_STATE_COLLECTING,
    RoundState.AGGREGATED: pb.ROUND_STATE_AGGREGATED,
    RoundState.ABANDONED: pb.ROUND_STATE_ABANDONED,
}
_ENCODINGS = {
    pb.UPDATE_ENCODING_UNSPECIFIED: "none",
    pb.UPDATE_ENCODING_FLOAT32: "none",
    pb.UPDATE_ENCODING_INT8: "int8",
    pb.UPDATE_ENCODING_TOP_K: "top_k",
    pb.UPDATE_ENCODING_MASKED: MASKED,
}
_DEFAULT_PAGE, _LARGEST_PAGE = 100, 1_000
_MOST_TENSORS, _MOST_RANK = 10_000, 8
_LONGEST_NAME = 128
_LONGEST_TOKEN = 20
# Messages may have 8 MiB; a single round has at most half of that.
_LARGEST_ANSWER_BYTES = 4 << 20


def federation_to_proto(federation: Federation) -> pb.Federation:
    core = federation.core
    message = pb.Federation(
        federation_id=federation.federation_id,
        state=_STATES[core.state],
        configuration=struct_to_proto(effective(federation.config)),
        round=core.round,
        policy_version=core.version,
        reason=core.reason or federation.obstacle,
        digest=core.digest,
        aggregated_rounds=core.aggregated,
    )
    message.create_time.FromNanoseconds(round(federation.created * 1e9))
    return message


def rounds_to_proto(history: Sequence[RoundRecord], page_size: int, page_token: str) -> pb.ListRoundsResponse:
    """Rounds, newest first; the token is the number of the last round on the previous page."""
    most = min(page_size or _DEFAULT_PAGE, _LARGEST_PAGE)
    if page_token and not (page_token.isascii() and page_token.isdigit() and len(page_token) <= _LONGEST_TOKEN):
        raise InvalidInput(f"page_token must be one of an earlier answer, got {page_token[:_LONGEST_TOKEN]!r}")
    below = int(page_token) if page_token else None
    wanted = [record for record in reversed(history) if below is None or record.number < below]
    answer = pb.ListRoundsResponse()
    size = 0
    for record in wanted[:most]:
        found = _round(record)
        size += found.ByteSize()
        if answer.rounds and size > _LARGEST_ANSWER_BYTES:
            break
        answer.rounds.append(found)
    if len(answer.rounds) < len(wanted):
        answer.next_page_token = str(answer.rounds[-1].number)
    return answer


def offer_from_proto(header: pb.UpdateHeader) -> Offer:
    if not header.node_id or len(header.node_id) > _LONGEST_NAME:
        raise InvalidInput(
            f"node_id must have 1 to {_LONGEST_NAME} characters, got {len(header.node_id)}", reason="UPDATE_HEADER"
        )
    return Offer(
        node_id=header.node_id,
        round=header.round,
        base_version=header.base_version,
        nonce=header.nonce.hex(),
        samples=header.samples,
        digest=header.digest.hex(),
    )


def about_from_proto(header: pb.UpdateHeader) -> UpdateAbout:
    encoding = _ENCODINGS.get(header.encoding)
    if encoding is None:
        raise InvalidInput(f"unknown encoding {header.encoding} of an update", reason="UPDATE_ENCODING")
    if len(header.tensors) > _MOST_TENSORS:
        raise InvalidInput(
            f"an update may have at most {_MOST_TENSORS} tensors, got {len(header.tensors)}", reason="UPDATE_SCHEMA"
        )
    tensors = [_tensor(tensor) for tensor in header.tensors]
    metrics = finite_metrics(struct_from_proto(header.metrics))
    return UpdateAbout(tensors, header.schema_digest, header.size_bytes, encoding, metrics)


def model_header(federation_id: str, model: StoredModel) -> pb.ModelHeader:
    return pb.ModelHeader(
        federation_id=federation_id,
        version=model.version,
        digest=bytes.fromhex(model.digest),
        size_bytes=model.size_bytes,
        checksum=model.checksum,
    )


def _tensor(tensor: tensor_pb2.Tensor) -> TensorSpec:
    if len(tensor.shape) > _MOST_RANK or any(size < 0 for size in tensor.shape):
        raise InvalidInput(
            f"tensor {tensor.name} must have 0 to {_MOST_RANK} dimensions >= 0, got {list(tensor.shape)}",
            reason="UPDATE_SCHEMA",
        )
    if tensor.dtype not in tensor_pb2.DataType.values():
        raise InvalidInput(f"tensor {tensor.name} has an unknown type {tensor.dtype}", reason="UPDATE_SCHEMA")
    dtype = tensor_pb2.DataType.Name(tensor.dtype).removeprefix("DATA_TYPE_").lower()
    return TensorSpec(tensor.name, tuple(tensor.shape), dtype)


def _round(record: RoundRecord) -> pb.Round:
    message = pb.Round(
        number=record.number,
        state=_ROUND_STATES[record.state],
        base_version=record.base_version,
        policy_version=record.policy_version,
        digest=record.digest,
        seconds=record.seconds,
        metrics=struct_to_proto(record.metrics),
        unlisted_updates=record.unrecorded,
        reason=record.reason,
        updates=[
            pb.UpdateRecord(
                node_id=update.node_id,
                node_weight=update.node_weight,
                samples=update.samples,
                counted_samples=update.counted_samples,
                norm=update.norm,
                refusal=update.refusal,
                message=update.message,
                notes=update.notes,
            )
            for update in record.updates
        ],
    )
    message.start_time.FromNanoseconds(round(record.started * 1e9))
    return message
