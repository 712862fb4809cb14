"""The checks that an update must pass to count, in this order: round and nonce, schema and size, finiteness, norm.

The caller's identity is checked before them, outliers and weights after them, when the round closes. Pure.
"""

from collections.abc import Mapping, Sequence

from parlmesh.errors import AlreadyExists, FailedPrecondition, FleetError, InvalidInput
from parlmesh.federation.compression import check_size
from parlmesh.federation.config import FederationConfig
from parlmesh.federation.schema import ModelSchema, TensorSpec

from .records import Answer, Assignment, Offer

MASKED = "masked"
MOST_METRICS = 64
MOST_SAMPLES = 1 << 53
# Beyond this, a mean might not be finite.
_LARGEST_METRIC = 1e100


def check_same(offer: Offer, known: Answer) -> None:
    """A node may send its update again, but not another one."""
    if known.digest != offer.digest:
        raise AlreadyExists(
            f"node {offer.node_id} has answered round {offer.round} with another update", reason="ANSWERED_TWICE"
        )


def check_asked(offer: Offer, assignment: Assignment) -> None:
    """An update must answer what its node was asked in this round."""
    if assignment.nonce != offer.nonce:
        raise refusal("WRONG_NONCE", f"the nonce is not that of node {offer.node_id} in round {offer.round}")
    if assignment.base_version != offer.base_version:
        raise refusal(
            "WRONG_BASE", f"the update must be to version {assignment.base_version}, got {offer.base_version}"
        )


def check_shape(
    schema: ModelSchema, tensors: Sequence[TensorSpec] | None, size_bytes: int, encoding: str, wanted: str
) -> None:
    """Called before any data is taken; `tensors` is None when they are known to match the schema."""
    if tensors is not None:
        schema.check(tensors)
    if encoding not in ("none", wanted) or (wanted == MASKED and encoding != wanted):
        raise InvalidInput(
            f"updates of this federation are packed as {wanted}, got {encoding}", reason="UPDATE_ENCODING"
        )
    if encoding != MASKED:
        check_size(size_bytes, schema.size, encoding)
    elif size_bytes != 4 * (schema.size + 1):
        raise InvalidInput(
            f"a masked update of {schema.size} numbers must have {4 * (schema.size + 1)} bytes, got {size_bytes}",
            reason="UPDATE_SIZE",
        )


def check_claims(samples: int, metrics: dict[str, float], config: FederationConfig) -> None:
    """Checks the claims that a node sends with its update. In a private federation, samples are neither checked nor
    counted."""
    if config.privacy.mode == "none" and not 1 <= samples <= MOST_SAMPLES:
        raise InvalidInput(f"an update must be of 1 to {MOST_SAMPLES} samples, got {samples}", reason="NO_SAMPLES")
    if len(metrics) > MOST_METRICS:
        raise InvalidInput(
            f"an update may have at most {MOST_METRICS} metrics, got {len(metrics)}", reason="UPDATE_METRICS"
        )


def check_values(answer: Answer, config: FederationConfig) -> None:
    """Called once the data is whole. With central privacy, a bad update is not refused: it counts as nothing."""
    if config.privacy.mode == "central":
        return
    if config.gate.finite and not answer.finite:
        raise InvalidInput("the update has a number that is not finite", reason="NOT_FINITE")
    limit = config.gate.max_norm
    if limit and not answer.norm <= limit:
        raise InvalidInput(
            f"the update's norm is {answer.norm:.4g}; the limit is {limit:g} (gate.max_norm)", reason="NORM"
        )


def finite_metrics(metrics: Mapping[str, object]) -> dict[str, float]:
    """Keeps only numbers that can be averaged."""
    return {
        name[:100]: float(value)
        for name, value in metrics.items()
        if isinstance(value, (int, float)) and abs(value) <= _LARGEST_METRIC
    }


def evaluation_in(found: object) -> tuple[int, dict[str, float]]:
    """A node's samples and metrics; InvalidInput when they are malformed."""
    samples = found.get("samples") if isinstance(found, Mapping) else None
    if not isinstance(samples, (int, float)) or isinstance(samples, bool) or not 0 <= samples <= MOST_SAMPLES:
        raise _bad(f"samples must be a number from 0 to {MOST_SAMPLES}, got {_shown(samples)}")
    if samples != int(samples):
        raise _bad(f"samples must be whole, got {samples}")
    metrics = found.get("metrics") if isinstance(found, Mapping) else None
    if not isinstance(metrics, Mapping) or len(metrics) > MOST_METRICS:
        raise _bad(f"metrics must be up to {MOST_METRICS} numbers by name, got {_shown(metrics)}")
    if len(finite_metrics(metrics)) < len(metrics):
        raise _bad(f"metrics must be numbers of at most {_LARGEST_METRIC:g}, got {_shown(dict(metrics))}")
    return int(samples), finite_metrics(metrics)


def _bad(message: str) -> InvalidInput:
    return InvalidInput(message, reason="BAD_ANSWER")


def _shown(value: object) -> str:
    return repr(value)[:60]


def refusal(reason: str, message: str) -> FleetError:
    """An error for an update that is valid in itself, but not now."""
    return FailedPrecondition(message, reason=reason)
