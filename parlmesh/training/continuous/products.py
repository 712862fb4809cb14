"""Products of matrices on the processor: large ones by oneDNN, small ones by torch's own.

torch multiplies matrices of single precision with MKL, which on processors of other makers than its own leaves half of
the vector units unused. oneDNN comes with torch and uses them all, but a call costs ten microseconds more.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# Multiplications from which oneDNN is ahead.
_LARGE = 1 << 20


# torch has no public name for oneDNN's layer that takes plain tensors, and some builds do not have it.
_LAYER: Callable[..., Tensor] | None = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def layer(inputs: Tensor, weight: Tensor, bias: Tensor, activation: str, room: Tensor) -> Tensor:
    """activation(inputs [B, in] · weight [in, out] + bias), with "relu" or "tanh"; may be written to `room`."""
    if _LAYER is not None and _is_large(inputs, weight.shape[1]):
        return _LAYER(inputs, weight.t(), bias, activation, [], "")
    outputs = torch.addmm(bias, inputs, weight, out=room)
    return outputs.tanh_() if activation == "tanh" else outputs.relu_()


def product(left: Tensor, right: Tensor, room: Tensor) -> Tensor:
    """left [A, B] · right [B, C]; may be written to `room` [A, C]."""
    if _LAYER is not None and _is_large(left, right.shape[1]):
        return _LAYER(left, right.t(), None, "none", [], "")
    return torch.mm(left, right, out=room)


def _is_large(left: Tensor, columns: int) -> bool:
    return left.numel() * columns >= _LARGE and left.device.type == "cpu"
