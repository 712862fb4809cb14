"""Held policies by digest, evicted least recently requested first. Independent of gRPC."""

from collections import OrderedDict

from parlmesh.distribution.policy_messages import Published


class Shelf:
    """Holds at most `most_bytes`; the last policy is kept, whatever its size."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held: OrderedDict[bytes, Published] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def find(self, digest: bytes) -> Published | None:
        """The policy, marked as just requested."""
        found = self._held.get(digest)
        if found is not None:
            self._held.move_to_end(digest)
        return found

    def put(self, published: Published) -> None:
        """Adds a policy, and evicts others beyond the limit."""
        digest = published.blob.digest
        if digest in self._held:
            return
        self._held[digest] = published
        self.size_bytes += len(published.blob.data)
        while self.size_bytes > self._most_bytes and len(self._held) > 1:
            _, gone = self._held.popitem(last=False)
            self.size_bytes -= len(gone.blob.data)

    def version(self, run_id: str, run_uid: str, version: int) -> Published | None:
        """A version of a run, as the base of a delta; None if it is not held or `run_uid` is empty."""
        return next((each for each in self._of(run_id, run_uid) if each.blob.version == version), None)

    def newest(self, run_id: str, run_uid: str) -> Published | None:
        """The newest held version of a run."""
        return max(self._of(run_id, run_uid), key=lambda each: each.blob.version, default=None)

    def _of(self, run_id: str, run_uid: str) -> list[Published]:
        if not run_uid:
            return []
        return [each for each in self._held.values() if (each.blob.run_id, each.blob.run_uid) == (run_id, run_uid)]
