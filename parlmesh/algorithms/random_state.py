"""The complete state of a random generator as bytes, for checkpoints."""

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

_WORD_BYTES = 16
_PACKED_BYTES = 2 * _WORD_BYTES + 1 + 4


def pack_random_state(rng: np.random.Generator) -> Array:
    """uint8 [37]: the two 128-bit words of PCG64, and the half word that 32-bit draws left over."""
    state = rng.bit_generator.state
    words = (int(state["state"][name]).to_bytes(_WORD_BYTES, "little") for name in ("state", "inc"))
    half = int(state["has_uint32"]).to_bytes(1, "little") + int(state["uinteger"]).to_bytes(4, "little")
    return np.frombuffer(b"".join((*words, half)), np.uint8)


def restore_random_state(rng: np.random.Generator, packed: Array) -> None:
    """The inverse of `pack_random_state`."""
    data = packed.tobytes()
    if len(data) != _PACKED_BYTES:
        raise InvalidInput(f"a random state has {_PACKED_BYTES} bytes, got {len(data)}", reason="RANDOM_STATE")
    first, second = data[:_WORD_BYTES], data[_WORD_BYTES : 2 * _WORD_BYTES]
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": int.from_bytes(first, "little"), "inc": int.from_bytes(second, "little")},
        "has_uint32": data[2 * _WORD_BYTES],
        "uinteger": int.from_bytes(data[2 * _WORD_BYTES + 1 :], "little"),
    }
