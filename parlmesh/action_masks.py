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


def allowed(mask: Array, actions: Array) -> Array:
    """Whether a mask [..., choices], packed or not, allows actions [..., K]: bool [..., K]."""
    if mask.dtype == np.bool_:
        return np.take_along_axis(mask, actions, axis=-1)
    found: Array = (np.take_along_axis(mask, actions >> 3, axis=-1) >> (7 - (actions & 7)).astype(np.uint8)) & 1 != 0
    return found
