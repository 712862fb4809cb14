"""Orders, arrays and sums between the ranks of one learner, over torch.distributed. Knows nothing about models.

Messages are JSON and safetensors, because torch's own object messages are pickles. The group is not torch's default
group, so that a process may be in several, and in a new one after a loss.
"""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load, save
from torch import Tensor

from parlmesh.types import Array

# torch has types for only half of its groups and stores.
dist: Any = torch.distributed

# Anything larger cannot be a message.
_MOST_BYTES = 64 * 1024**3

Message = tuple[dict[str, Any], dict[str, Array]]


class RankLost(Exception):
    """Another rank did not answer, or has died."""


class Group:
    """All ranks, as one of them sees them."""

    def __init__(self, store: Any, rank: int, size: int, *, seconds: float, host: str = "") -> None:
        """Returns when all ranks have joined; every wait for another rank takes at most `seconds`."""
        self.rank, self.size = rank, size
        self._store, self._timeout = store, timedelta(seconds=seconds)
        options = dist.ProcessGroupGloo._Options()
        options._timeout = self._timeout
        device = dist.ProcessGroupGloo.create_device(hostname=host) if host else None
        options._devices = [device or dist.ProcessGroupGloo.create_default_device()]
        store.set_timeout(self._timeout)
        try:
            self._gloo = dist.ProcessGroupGloo(store, rank, size, options)
        except RuntimeError as error:
            raise RankLost(_first_line(error)) from None
        self._nccl: Any = None

    def send(self, to: int, order: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> None:
        """Returns when the message has been sent."""
        head = json.dumps(dict(order)).encode()
        body = save({name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()})
        data = torch.frombuffer(bytearray(head + body), dtype=torch.uint8)
        self._wait(self._gloo.send, [torch.tensor([len(head), len(body)])], to, 0)
        self._wait(self._gloo.send, [data], to, 0)

    def receive(self, source: int) -> Message:
        """The next message from a rank."""
        sizes = torch.zeros(2, dtype=torch.int64)
        self._wait(self._gloo.recv, [sizes], source, 0)
        head, body = sizes.tolist()
        if not (0 < head <= _MOST_BYTES and 0 <= body <= _MOST_BYTES):
            raise RankLost(f"rank {source} announced a message of {head} + {body} bytes; the limit is {_MOST_BYTES}")
        data = torch.empty(head + body, dtype=torch.uint8)
        self._wait(self._gloo.recv, [data], source, 0)
        text = data.numpy().tobytes()
        return json.loads(text[:head]), load(text[head:])

    def add_up(self, values: Tensor) -> None:
        """Sums values over all ranks, in place, with the same bits on each."""
        if values.is_cuda and dist.is_nccl_available():
            if self._nccl is None:
                store = dist.PrefixStore("nccl", self._store)
                self._nccl = dist.ProcessGroupNCCL(store, self.rank, self.size, self._timeout)
            self._wait(self._nccl.allreduce, [values])
            return
        here = values.cpu()
        self._wait(self._gloo.allreduce, [here])
        if here is not values:
            values.copy_(here)

    def _wait(self, call: Any, *arguments: Any) -> None:
        try:
            call(*arguments).wait()
        except RuntimeError as error:
            raise RankLost(_first_line(error)) from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
