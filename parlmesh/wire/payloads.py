"""A task's parameters and tensors, in and out."""

from collections.abc import Mapping
from typing import Any

from google.protobuf import struct_pb2

from parlmesh.errors import InvalidInput
from parlmesh.types import Array
from parlmesh.v1 import task_pb2 as pb

from .tensors import DEFAULT_LIMITS, TensorLimits, tensor_to_proto, tensors_from_proto


def payload_to_proto(parameters: Mapping[str, Any], tensors: Mapping[str, Array] | None = None) -> pb.Payload:
    """InvalidInput when the parameters are not a JSON object."""
    payload = pb.Payload()
    if parameters:
        payload.parameters.CopyFrom(struct_to_proto(parameters))
    for name, array in (tensors or {}).items():
        payload.tensors.append(tensor_to_proto(name, array))
    return payload


def payload_from_proto(
    payload: pb.Payload, limits: TensorLimits = DEFAULT_LIMITS
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Parameters and tensors; a tensor is a read-only view of the message."""
    return struct_from_proto(payload.parameters), tensors_from_proto(payload.tensors, limits)


def struct_to_proto(values: Mapping[str, Any]) -> struct_pb2.Struct:
    """InvalidInput when a value has no place in JSON."""
    struct = struct_pb2.Struct()
    try:
        struct.update(values)
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidInput(f"parameters must be a JSON object: {error}", reason="PARAMETERS") from error
    return struct


def struct_from_proto(struct: struct_pb2.Struct) -> dict[str, Any]:
    """Numbers without a fraction come back as int: JSON, and so Struct, knows only one kind."""
    return {name: _value(value) for name, value in struct.fields.items()}


def _value(value: struct_pb2.Value) -> Any:
    match value.WhichOneof("kind"):
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() else number
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return struct_from_proto(value.struct_value)
        case "list_value":
            return [_value(item) for item in value.list_value.values]
        case _:
            return None
