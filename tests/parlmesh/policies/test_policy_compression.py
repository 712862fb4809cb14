import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.errors import InvalidInput
from parlmesh.policies import PolicySpec, load_policy, pack_policy, unpack_policy
from parlmesh.policies.policy_compression import LOSSY, decode, encode
from parlmesh.types import ActionSpec

SPEC = PolicySpec(observation_shape=(4,), action=ActionSpec("discrete", sizes=(2,)), hidden=(8,))


def blob(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    shapes = {"policy.0.weight": (8, 4), "policy.0.bias": (8,), "policy.1.weight": (2, 8), "policy.1.bias": (2,)}
    weights = {name: (scale * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}
    return pack_policy(SPEC, {**weights, "normaliser.count": np.array([3.0])})


@given(st.binary(max_size=300), st.randoms(use_true_random=False))
def test_lossless_encodings_give_back_every_byte(data, random):
    base = random.randbytes(len(data))
    for encoding in ("safetensors", "zstd", "delta"):
        assert encoding not in LOSSY
        assert decode(encoding, encode(encoding, data, base), len(data), base) == data


def test_a_delta_between_near_versions_is_smaller_than_either():
    rng = np.random.default_rng(0)
    weights = rng.normal(size=50_000).astype(np.float32)
    old, new = weights.tobytes(), (weights + rng.normal(size=50_000).astype(np.float32) * 1e-5).tobytes()
    delta = encode("delta", new, old)
    assert len(delta) < 0.6 * len(new) < len(encode("zstd", new))
    assert decode("delta", delta, len(new), old) == new


def test_bfloat16_rounds_as_torch_does_and_halves_the_weights():
    data = blob(1)
    sent = encode("bfloat16", data)
    spec, got = unpack_policy(decode("bfloat16", sent, len(data)))
    _, weights = unpack_policy(data)
    assert spec == SPEC
    for name, weight in weights.items():
        expected = weight
        if weight.dtype == np.float32:
            expected = torch.from_numpy(weight.copy()).bfloat16().float().numpy()
        assert np.array_equal(got[name], expected), name
    assert len(data) - len(sent) >= 2 * (8 * 4 + 8 + 2 * 8 + 2) - 16
    load_policy(decode("bfloat16", sent, len(data)))


@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_every_float_survives_bfloat16_as_in_torch(values):
    weights = np.array(values, np.float32)
    arrived = unpack_policy(decode("bfloat16", encode("bfloat16", pack_policy(SPEC, {"w": weights})), 0))[1]["w"]
    assert np.array_equal(arrived, torch.from_numpy(weights).bfloat16().float().numpy(), equal_nan=True)


def test_what_a_torch_reader_gets_is_a_plain_safetensors_file():
    from safetensors.torch import load

    tensors = load(encode("bfloat16", blob(2)))
    assert tensors["policy.0.weight"].dtype == torch.bfloat16
    assert tensors["normaliser.count"].dtype == torch.float64


@pytest.mark.parametrize(
    ("encoding", "data", "size", "base", "sentence"),
    [
        ("zstd", b"not a frame", 3, b"", "cannot be decompressed"),
        ("zstd", encode("zstd", bytes(1 << 20)), 5, b"", "unpacks to 1048576 bytes; 5 were announced"),
        ("delta", encode("delta", b"abcd", b"efgh"), 4, b"abc", "a base of 4 bytes, got 3"),
        ("bfloat16", b"\xff" * 20, 4, b"", "policy header has"),
        ("bfloat16", (2).to_bytes(8, "little") + b"[]", 4, b"", "must be an object, got list"),
        ("bfloat16", (7).to_bytes(8, "little") + b'{"a":1}', 4, b"", "is not a safetensors file"),
    ],
)
def test_damaged_data_is_named(encoding, data, size, base, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        decode(encoding, data, size, base)
