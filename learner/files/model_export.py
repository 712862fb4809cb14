"""A model in a format that others read."""

from parlmesh.errors import FailedPrecondition
from parlmesh.policies import unpack_policy


def to_safetensors(blob: bytes, observation_dtype: str) -> bytes:
    """As it is kept: weights by name, the policy's specification as JSON in the metadata."""
    return blob


def to_onnx(blob: bytes, observation_dtype: str) -> bytes:
    """One graph from the raw observation to the greedy action."""
    try:
        # Needed by few, and not by a learner that exports nothing.
        from .onnx_export import to_onnx as write
    except ImportError as error:
        message = (
            f"exporting to ONNX needs a package that is not installed here ({error}): pip install parlmesh[export]"
        )
        raise FailedPrecondition(message, reason="NOT_INSTALLED") from error
    return write(*unpack_policy(blob), observation_dtype)
