"""The policies that are held, by digest: what was asked for the longest ago makes room. Knows nothing of gRPC."""

from collections import OrderedDict

from parlmesh.distribution.policy_messages import Published


class Shelf:
    """At most `most_bytes`; the last policy stays whatever it weighs."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held: OrderedDict[bytes, Published] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def find(self, digest: bytes) -> Published | None:
        """The policy, which counts as asked for now."""
        found = self._held.get(digest)
        if found is not None:
            self._held.move_to_end(digest)
        return found

    def put(self, published: Published) -> None:
        """Holds a policy, and lets others go when there is too much."""
        digest = published.blob.digest
        if digest in self._held:
            return
        self._held[digest] = published
        self.size_bytes += len(published.blob.data)
        while self.size_bytes > self._most_bytes and len(self._held) > 1:
            _, gone = self._held.popitem(last=False)
            self.size_bytes -= len(gone.blob.data)

    def version(self, run_id: str, run_uid: str, version: int) -> Published | None:
        """A version of a run, as the base of a delta; None when it is not here or the run is not known for sure."""
        return next((each for each in self._of(run_id, run_uid) if each.blob.version == version), None)

    def newest(self, run_id: str, run_uid: str) -> Published | None:
        """The newest version of a run that is here."""
        return max(self._of(run_id, run_uid), key=lambda each: each.blob.version, default=None)

    def _of(self, run_id: str, run_uid: str) -> list[Published]:
        if not run_uid:
            return []
        return [each for each in self._held.values() if (each.blob.run_id, each.blob.run_uid) == (run_id, run_uid)]
