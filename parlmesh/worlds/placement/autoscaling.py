"""Kubernetes' horizontal pod autoscaler with its default behaviour, vectorised over deployments."""

from collections import deque

import numpy as np

from parlmesh.types import Array

_TOLERANCE = 0.1
_PERIOD_SECONDS = 15.0
_DOWN_WINDOW_SECONDS = 300.0
_UP_PODS, _UP_FACTOR = 4, 2


class Autoscaler:
    """ceil(replicas · utilisation / target), unchanged within a tenth of the target.

    Scales up immediately, by at most 4 pods or 100 % per 15 s; scales down to the highest recommendation of the last
    300 s.
    """

    def __init__(self, target: float, step_seconds: float, least: int, most: int) -> None:
        self._target, self._least, self._most = target, max(1, least), most
        self._periods = max(1, int(step_seconds / _PERIOD_SECONDS))
        self._recent: deque[Array] = deque(maxlen=max(1, int(np.ceil(_DOWN_WINDOW_SECONDS / step_seconds))))

    def wanted(self, replicas: Array, utilisation: Array) -> Array:
        """Replicas after one step, in the shape of the arguments."""
        ratio = utilisation / self._target
        asked = np.where(np.abs(ratio - 1.0) <= _TOLERANCE, replicas, np.ceil(replicas * ratio - 1e-9))
        asked = np.clip(asked, self._least, self._most).astype(np.int64)
        self._recent.append(asked)
        held = np.maximum(asked, np.minimum(np.max(self._recent, axis=0), replicas))
        limit = replicas.copy()
        for _ in range(self._periods):
            limit = np.maximum(limit + _UP_PODS, limit * _UP_FACTOR)
            if (limit >= held).all():
                break
        found: Array = np.minimum(held, limit)
        return found
