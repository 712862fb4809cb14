"""What an update must be to count, in this order: round and nonce, then schema and size, then finite, then norm.

Identity comes before (the servicer knows the caller), outliers and weights after, when the round closes. Pure.
"""

import math
from collections.abc import Mapping, Sequence

from parlmesh.errors import FailedPrecondition, FleetError, InvalidInput
from parlmesh.federation.compression import check_size
from parlmesh.federation.config import FederationConfig
from parlmesh.federation.schema import ModelSchema, TensorSpec

from .records import Answer

MOST_METRICS = 64


def check_shape(
    schema: ModelSchema, tensors: Sequence[TensorSpec] | None, size_bytes: int, encoding: str, wanted: str
) -> None:
    """Before a byte of data is taken; the tensors are None when they are known to be the schema's."""
    if tensors is not None:
        schema.check(tensors)
    if encoding not in ("none", wanted):
        raise InvalidInput(
            f"updates of this federation are packed as {wanted}, got {encoding}", reason="UPDATE_ENCODING"
        )
    check_size(size_bytes, schema.size, encoding)


def check_claims(samples: int, metrics: dict[str, float]) -> None:
    """What a node says besides its update."""
    if samples < 1:
        raise InvalidInput(f"an update must be of at least 1 sample, got {samples}", reason="NO_SAMPLES")
    if len(metrics) > MOST_METRICS:
        raise InvalidInput(f"an update may have {MOST_METRICS} metrics, got {len(metrics)}", reason="UPDATE_METRICS")


def check_values(answer: Answer, config: FederationConfig) -> None:
    """Once the data is whole."""
    if config.gate.finite and not answer.finite:
        raise InvalidInput("the update has a number that is not finite", reason="NOT_FINITE")
    limit = config.gate.max_norm
    if limit and not answer.norm <= limit:
        raise InvalidInput(
            f"the update's norm is {answer.norm:.4g}; the limit is {limit:g} (gate.max_norm)", reason="NORM"
        )


def finite_metrics(metrics: Mapping[str, object]) -> dict[str, float]:
    """Only numbers that can be averaged."""
    return {
        name[:100]: float(value)
        for name, value in metrics.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }


def refusal(reason: str, message: str) -> FleetError:
    """Right in itself, but not now."""
    return FailedPrecondition(message, reason=reason)
