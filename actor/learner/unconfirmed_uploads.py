"""Uploads without a receipt yet: a slot collects its next trajectory while a few are in flight, and waits while there
are more."""

import concurrent.futures
import time
from collections import defaultdict, deque
from typing import TypeAlias

from parlmesh.handlers import Context

from .policy_client import wait_for_end
from .trajectory_uploads import Receipt

Upload: TypeAlias = "concurrent.futures.Future[Receipt]"
# Uploads of a slot that may be in flight while its next trajectory is collected.
_OVERLAP = 2


class UnconfirmedUploads:
    """Uploads by slot, including those of the slot's last task. Each slot is used by one thread."""

    def __init__(self) -> None:
        self._by_slot: defaultdict[int, deque[Upload]] = defaultdict(deque)

    def add(self, slot: int, upload: Upload) -> None:
        """Adds an upload that has started."""
        self._by_slot[slot].append(upload)

    def make_room(self, context: Context) -> float:
        """Waits while too many of the slot's uploads are in flight; returns the seconds it took."""
        asked = time.perf_counter()
        uploads = self._by_slot[context.slot]
        while len(uploads) >= _OVERLAP:
            wait_for_end(uploads[0], context)
            uploads.popleft()
        return time.perf_counter() - asked
