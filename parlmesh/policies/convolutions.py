"""Convolutional bodies by name; torch and ONNX build them from this."""

from typing import NamedTuple


class Convolution(NamedTuple):
    """One layer, followed by relu. With residual blocks (two 3 x 3 layers each, plus their input), relu comes before
    the blocks' layers and after the last block of the body instead."""

    channels: int
    kernel: int
    stride: int
    padding: int
    pooled: bool = False
    """Whether a 3 x 3 max pool with stride 2 comes before the blocks."""
    blocks: int = 0

    def side(self, side: int) -> int:
        """Length of a side after this layer; below 1 when the kernel does not fit."""
        side = (side + 2 * self.padding - self.kernel) // self.stride + 1
        return (side - 1) // 2 + 1 if self.pooled else side


CONVOLUTIONS: dict[str, tuple[Convolution, ...]] = {
    # Small images of any size.
    "conv": (Convolution(16, 3, 2, 1), Convolution(32, 3, 2, 1)),
    # Young and Tian 2019 (MinAtar), for 10 x 10: stride 1, so that positions stay visible.
    "minatar": (Convolution(16, 3, 1, 0),),
    # Mnih et al. 2015, for 84 x 84.
    "nature": (Convolution(32, 8, 4, 0), Convolution(64, 4, 2, 0), Convolution(64, 3, 1, 0)),
    # Espeholt et al. 2018 (IMPALA), the deep variant: slower, but learns more from images of 64 x 64 and larger.
    "impala": tuple(Convolution(channels, 3, 1, 1, pooled=True, blocks=2) for channels in (16, 32, 32)),
}


def flat_size(network: str, shape: tuple[int, ...]) -> int:
    """Number of features that the body computes from an image [C, H, W]; 0 when the image is too small."""
    _, height, width = shape
    for layer in CONVOLUTIONS[network]:
        height, width = layer.side(height), layer.side(width)
        if height < 1 or width < 1:
            return 0
    return CONVOLUTIONS[network][-1].channels * height * width
