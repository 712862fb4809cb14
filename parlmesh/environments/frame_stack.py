"""Frame stacking (`environment.stacked`): the policy sees the last few observations together."""

import numpy as np

from parlmesh.types import Array

from .spaces import refusal


class FrameStack:
    """The last `count` observations joined along the first axis; an episode starts with copies of its first one."""

    def __init__(self, count: int, shape: tuple[int, ...]) -> None:
        if count > 1 and not shape:
            raise refusal("states cannot be stacked; environment.stacked must be 1")
        self._count = count
        self._last: Array | None = None
        self.shape = (count * shape[0], *shape[1:]) if shape else ()

    def add(self, seen: Array, first: Array) -> Array:
        """Adds one observation and returns the stack [E, *shape]; `first` [E] marks the start of an episode."""
        if self._count == 1:
            return seen
        if self._last is None:
            self._last = np.repeat(seen[:, None], self._count, axis=1)
        else:
            self._last = np.concatenate((self._last[:, 1:], seen[:, None]), axis=1)
        self._last[first] = seen[first][:, None]
        return self._last.reshape(len(seen), *self.shape)
