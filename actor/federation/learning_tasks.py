"""The learning tasks of a process: made once for all of its actors."""

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from parlmesh.federation.learning import LearningTask, make_task

_KEPT = 8


class LearningTasks:
    """Tasks by name and settings; used from any thread."""

    def __init__(self, installed: Mapping[str, str]) -> None:
        self._installed = installed
        self._lock = threading.Lock()
        self._made: OrderedDict[str, LearningTask] = OrderedDict()

    def get(self, name: str, settings: Mapping[str, Any]) -> LearningTask:
        """InvalidInput when it is not installed or refuses its settings."""
        key = json.dumps([name, settings], sort_keys=True)
        with self._lock:
            if key not in self._made:
                self._made[key] = make_task(name, settings, self._installed)
                while len(self._made) > _KEPT:
                    self._made.popitem(last=False)
            return self._made[key]
