"""Masks of actions as bits: of thousands of choices a few dozen are allowed, and eight of them fit in a byte."""

import numpy as np

from parlmesh.types import Array

# Fewer choices are not worth the work.
_LEAST_PACKED = 256


def packed_width(choices: int) -> int:
    """Bytes of a mask that travels packed; 0 when a mask of so many choices travels as it is."""
    return -(-choices // 8) if choices >= _LEAST_PACKED else 0


def pack_mask(mask: Array) -> Array:
    """bool [..., choices] as uint8 [..., bytes], where that is how it travels."""
    return np.packbits(mask, axis=-1) if packed_width(mask.shape[-1]) else mask


def unpack_mask(mask: Array, choices: int) -> Array:
    """The inverse of `pack_mask`."""
    if mask.dtype == np.bool_:
        return mask
    found: Array = np.unpackbits(mask, axis=-1, count=choices).view(np.bool_)
    return found
