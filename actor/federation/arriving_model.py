"""A federated model on its way to a node: its chunks go where they stay, and are checked as they pass."""

import numpy as np

from parlmesh.errors import ResourceExhausted
from parlmesh.federation.digests import fast_hasher
from parlmesh.federation.model_file import ModelFile, read_model
from parlmesh.v1 import federation_service_pb2 as pb


class ArrivingModel:
    """Room for one version; ResourceExhausted when it is larger than `limit`."""

    def __init__(self, header: pb.ModelHeader, limit: int) -> None:
        if header.size_bytes > limit:
            raise ResourceExhausted(
                f"model version {header.version} has {header.size_bytes} bytes; the limit is {limit}"
                " (limits.policy_bytes)"
            )
        self.federation_id, self.version = header.federation_id, header.version
        self._checksum = header.checksum
        # numpy asks for large pages: touching the room for 40 MB costs a quarter of what bytes would.
        self._room = np.empty(header.size_bytes, np.uint8)
        self._view = memoryview(self._room)  # type: ignore[arg-type]
        self._hasher = fast_hasher()
        self._received = 0

    def take(self, data: memoryview) -> bool:
        """One chunk; False when there is no room for it."""
        after = self._received + len(data)
        if after > len(self._view):
            return False
        self._view[self._received : after] = data
        self._hasher.update(data)
        self._received = after
        return True

    @property
    def missing(self) -> int:
        """Bytes that are still to come."""
        return len(self._view) - self._received

    def whole(self) -> ModelFile | None:
        """The model; None when it is not what its header said."""
        if self.missing or self._hasher.digest() != self._checksum:
            return None
        self._room.flags.writeable = False
        return read_model(memoryview(self._room))  # type: ignore[arg-type]
