"""Encodings by their number in the contract."""

from collections.abc import Mapping

from parlmesh.errors import InvalidInput
from parlmesh.policies.policy_compression import Encoding
from parlmesh.v1 import policy_service_pb2 as pb

ENCODINGS: Mapping[int, Encoding] = {
    pb.POLICY_ENCODING_UNSPECIFIED: "safetensors",
    pb.POLICY_ENCODING_SAFETENSORS: "safetensors",
    pb.POLICY_ENCODING_ZSTD: "zstd",
    pb.POLICY_ENCODING_BFLOAT16: "bfloat16",
    pb.POLICY_ENCODING_DELTA: "delta",
}


def encoding_of(wanted: "pb.PolicyEncoding.ValueType") -> Encoding:
    """The encoding that a reader asked for."""
    if wanted not in ENCODINGS:
        known = ", ".join(pb.PolicyEncoding.keys())
        raise InvalidInput(f"encoding {wanted} is unknown; there are {known}", reason="POLICY_ENCODING")
    return ENCODINGS[wanted]
