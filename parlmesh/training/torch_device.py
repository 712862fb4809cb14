"""The device on which torch computes. Imported only when the configuration asks for torch."""

import torch

from parlmesh.errors import ConfigError

CPU = torch.device("cpu")


def torch_device(wanted: str) -> torch.device:
    """The device of `training.device`: auto takes CUDA when there is one."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "training.device is cuda, but torch finds no CUDA device here; use auto or cpu", key="training.device"
        )
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)
