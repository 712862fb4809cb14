"""The policies that can be fetched: immutable, serialised once, a few versions kept. Used on the event loop."""

import asyncio
import hashlib
import time
from collections import OrderedDict

from parlmesh.distribution.policy_messages import Published
from parlmesh.errors import FailedPrecondition, NotFound
from parlmesh.types import PolicyBlob

# Enough for an evaluation to still fetch the version it was asked for; if policies are large, fewer are kept.
_KEPT_VERSIONS = 256
_KEPT_BYTES = 512 << 20
_LEAST_KEPT = 4


class PolicyRegistry:
    """Versions grow by at least one; a reader waits for one newer than its own."""

    def __init__(self, run_id: str, run_uid: str = "") -> None:
        self.run_id = run_id
        self.run_uid = run_uid
        self._versions: OrderedDict[int, Published] = OrderedDict()
        # Versions needed beyond their time, such as opponents.
        self._kept: dict[int, Published] = {}
        self._bytes = 0
        self._changed = asyncio.Event()

    @property
    def version(self) -> int:
        """The newest version; 0 before the first."""
        return next(reversed(self._versions), 0)

    def publish(self, version: int, data: bytes) -> Published:
        """Makes a version the newest."""
        if version <= self.version:
            raise FailedPrecondition(f"policy version must grow: {version} after {self.version}")
        blob = PolicyBlob(self.run_id, version, hashlib.sha256(data).digest(), data, self.run_uid)
        published = self._versions[version] = Published(blob, time.time())
        self._bytes += len(data)
        while self._too_many():
            self._forget_oldest()
        self._changed.set()
        self._changed = asyncio.Event()
        return published

    def keep(self, version: int) -> None:
        """Serves a version until it is released, however many come after it."""
        self._kept[version] = self.get("", version)

    def recall(self, version: int, data: bytes) -> None:
        """Serves a version from before a restart again, until it is released."""
        blob = PolicyBlob(self.run_id, version, hashlib.sha256(data).digest(), data, self.run_uid)
        self._kept[version] = Published(blob, time.time())

    def release(self, version: int) -> None:
        """Allows a version to be forgotten in its turn."""
        self._kept.pop(version, None)

    def keep_newest(self) -> None:
        """Forgets all older versions except kept ones, because the run has ended."""
        while len(self._versions) > 1:
            self._forget_oldest()

    def get(self, run_id: str, version: int = 0) -> Published:
        """A version, or the newest for 0; an empty run id means the only run."""
        self.check_run(run_id)
        if not self._versions:
            raise FailedPrecondition(f"run {self.run_id} has no policy yet", reason="NO_POLICY")
        if version == 0:
            return self._versions[self.version]
        if version in self._kept:
            return self._kept[version]
        if version not in self._versions:
            oldest = next(iter(self._versions))
            message = f"policy version {version} is not kept; there are {oldest} to {self.version}"
            raise NotFound(message, reason="POLICY_VERSION")
        return self._versions[version]

    def find(self, version: int) -> Published | None:
        """A version, if it is still kept."""
        return self._versions.get(version) or self._kept.get(version)

    def is_other(self, run_uid: str) -> bool:
        """Whether a uid is known to belong to another run."""
        return "" not in (run_uid, self.run_uid) and run_uid != self.run_uid

    async def passed(self, version: int) -> None:
        """Waits for a version above `version`; the caller's deadline bounds the wait."""
        while self.version <= version:
            await self._changed.wait()

    def check_run(self, run_id: str) -> None:
        """Raises NotFound when `run_id` is that of another run."""
        if run_id not in ("", self.run_id):
            raise NotFound(f"run {run_id!r} is not here; this learner has {self.run_id!r}", reason="UNKNOWN_RUN")

    def _forget_oldest(self) -> None:
        _, oldest = self._versions.popitem(last=False)
        self._bytes -= len(oldest.blob.data)

    def _too_many(self) -> bool:
        kept = len(self._versions)
        return kept > _KEPT_VERSIONS or (kept > _LEAST_KEPT and self._bytes > _KEPT_BYTES)
