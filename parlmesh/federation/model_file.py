"""A federated model as bytes: a safetensors file that also contains the rule of each tensor.

The averaged tensors come first, sorted by name, so that they form one contiguous float32 vector.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .schema import MEAN, ModelSchema, TensorSpec

_SCHEMA = "schema"
_DTYPES = {
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "bool": "BOOL",
}
_LENGTH_BYTES = 8
_LARGEST_HEADER_BYTES = 16 << 20
_LAYOUTS_KEPT = 8


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A loaded model; its tensors are read-only views of the bytes."""

    schema: ModelSchema
    tensors: Mapping[str, Array]
    metadata: Mapping[str, str]


def other_tensors(schema: ModelSchema) -> list[TensorSpec]:
    """The tensors after the averaged ones."""
    return [tensor for tensor in schema.tensors if tensor.rule != MEAN]


def model_header(schema: ModelSchema, metadata: Mapping[str, str]) -> bytes:
    """The bytes before the values."""
    entries: dict[str, object] = {"__metadata__": {**metadata, _SCHEMA: json.dumps(schema.to_list())}}
    start = 0
    for tensor in (*schema.joined, *other_tensors(schema)):
        stop = start + tensor.size * np.dtype(tensor.dtype).itemsize
        entries[tensor.name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, stop],
        }
        start = stop
    text = json.dumps(entries).encode()
    # The format requires the values to start at a multiple of 8.
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def read_model(data: bytes | memoryview) -> ModelFile:
    """Parses a model file; raises InvalidInput for anything else."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if not 0 < length <= min(_LARGEST_HEADER_BYTES, len(data) - _LENGTH_BYTES):
        raise InvalidInput(f"a model of {len(data)} bytes cannot have a header of {length} bytes", reason="MODEL_FILE")
    schema, metadata, places = _layout(bytes(data[_LENGTH_BYTES : _LENGTH_BYTES + length]))
    end = max((stop for _, stop in places.values()), default=0)
    if len(data) - _LENGTH_BYTES - length < end:
        raise InvalidInput(f"a model of {len(data)} bytes is truncated: its tensors end at {end}", reason="MODEL_FILE")
    tensors = {
        spec.name: np.frombuffer(
            data, np.dtype(spec.dtype), spec.size, _LENGTH_BYTES + length + places[spec.name][0]
        ).reshape(spec.shape)
        for spec in schema.tensors
    }
    return ModelFile(schema, tensors, metadata)


@lru_cache(maxsize=_LAYOUTS_KEPT)
def _layout(header: bytes) -> tuple[ModelSchema, Mapping[str, str], Mapping[str, tuple[int, int]]]:
    """The parsed header. Cached, because all versions of a model have the same one."""
    try:
        entries = json.loads(header)
        metadata = entries.pop("__metadata__")
        schema = ModelSchema.from_list(json.loads(metadata[_SCHEMA]))
        places: dict[str, tuple[int, int]] = {}
        for spec in schema.tensors:
            start, stop = entries[spec.name]["data_offsets"]
            if start < 0 or stop - start != math.prod(spec.shape) * np.dtype(spec.dtype).itemsize:
                raise ValueError(f"{spec.name} has {stop - start} bytes")
            places[spec.name] = (start, stop)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, RecursionError) as error:
        raise InvalidInput(f"a federated model cannot be read: {error!r}", reason="MODEL_FILE") from error
    return schema, metadata, places
