import json

import pytest

from parlmesh.errors import InvalidInput
from parlmesh.federation.model_file import read_model
from parlmesh.policies.policy_file import split_file

DEEP = b"[" * 100_000 + b"]" * 100_000


def file_of(header):
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    "header",
    [
        DEEP,
        b"[]",
        b"5",
        b"{}",
        json.dumps({"__metadata__": {"schema": DEEP.decode()}}).encode(),
        json.dumps({"__metadata__": {"schema": "[5]"}}).encode(),
    ],
)
def test_an_invalid_header_is_refused_however_deep_it_is(header):
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_model(file_of(header))


def test_a_deep_header_of_a_policy_is_refused():
    with pytest.raises(InvalidInput, match="not a safetensors file"):
        split_file(file_of(DEEP))
