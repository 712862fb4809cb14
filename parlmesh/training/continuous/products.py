"""Products of matrices on the processor: by torch's own MKL, or large ones by oneDNN where that is faster.

MKL leaves half of the vector units of processors unused that are not Intel's. oneDNN, which comes with torch, uses them
all, but a call costs ten microseconds more. On Intel's processors MKL is faster by a quarter.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

# Number of multiplications from which oneDNN is faster.
_LARGE = 1 << 20
# A service may not see the first (ProcSubset=pid); systems other than Linux have neither.
_DESCRIPTIONS = (Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu/modalias"))
_INTEL = ("GenuineIntel", "x86,ven0000")


def one_dnn_layer(descriptions: Iterable[Path] = _DESCRIPTIONS) -> Callable[..., Tensor] | None:
    """oneDNN's layer; None on Intel's processors, where none of these files describes the processor, and in builds of
    torch that do not have it."""
    for file in descriptions:
        try:
            found = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # torch has no public name for the layer that takes plain tensors.
        return None if any(name in found for name in _INTEL) else getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return None


_LAYER = one_dnn_layer()


def layer(inputs: Tensor, weight: Tensor, bias: Tensor, activation: str, room: Tensor) -> Tensor:
    """activation(inputs [B, in] · weight [in, out] + bias), with "relu" or "tanh"; may be written to `room`."""
    if _LAYER is not None and _is_large(inputs, weight.shape[1]):
        if activation == "tanh":
            return _LAYER(inputs, weight.t(), bias, "tanh", [], "")
        # oneDNN's own relu makes 0 of what is not a number, and nobody would notice a network that diverged.
        return _LAYER(inputs, weight.t(), bias, "none", [], "").relu_()
    outputs = torch.addmm(bias, inputs, weight, out=room)
    return outputs.tanh_() if activation == "tanh" else outputs.relu_()


def product(left: Tensor, right: Tensor, room: Tensor) -> Tensor:
    """left [A, B] · right [B, C]; may be written to `room` [A, C]."""
    if _LAYER is not None and _is_large(left, right.shape[1]):
        return _LAYER(left, right.t(), None, "none", [], "")
    return torch.mm(left, right, out=room)


def _is_large(left: Tensor, columns: int) -> bool:
    return left.numel() * columns >= _LARGE and left.device.type == "cpu"
