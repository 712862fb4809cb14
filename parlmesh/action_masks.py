"""Action masks packed as bits, eight choices per byte, for environments with thousands of choices."""

import numpy as np

from parlmesh.types import Array

# Packing is not worth the work for fewer choices.
_LEAST_PACKED = 256


def packed_width(choices: int) -> int:
    """Bytes of a packed mask; 0 when a mask with this many choices is not packed."""
    return -(-choices // 8) if choices >= _LEAST_PACKED else 0


def pack_mask(mask: Array) -> Array:
    """Packs bool [..., choices] into uint8 [..., bytes], or returns the mask unchanged when it has few choices."""
    return np.packbits(mask, axis=-1) if packed_width(mask.shape[-1]) else mask


def unpack_mask(mask: Array, choices: int) -> Array:
    """The inverse of `pack_mask`."""
    if mask.dtype == np.bool_:
        return mask
    found: Array = np.unpackbits(mask, axis=-1, count=choices).view(np.bool_)
    return found


def allowed(mask: Array, actions: Array) -> Array:
    """Whether a mask [..., choices], packed or not, allows actions [..., K]: bool [..., K]."""
    if mask.dtype == np.bool_:
        return np.take_along_axis(mask, actions, axis=-1)
    found: Array = (np.take_along_axis(mask, actions >> 3, axis=-1) >> (7 - (actions & 7)).astype(np.uint8)) & 1 != 0
    return found
