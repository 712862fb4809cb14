"""The key from which the noise of private rounds is drawn. It is hashed onward with every version, so old noise is
lost.

A reader of the file cannot subtract the noise of published versions. A round that is repeated after a kill draws the
same noise, because the key changes only once its version is recorded.
"""

import hashlib
import json
import secrets
from pathlib import Path

from parlmesh.durable_files import PRIVATE, replace_file
from parlmesh.telemetry import get_logger

log = get_logger("parlmesh.learner")

NOISE_KEY = "noise.key"
_KEY_BYTES = 32


class NoiseKey:
    """Kept in its own file, which only its owner can read. Used in one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def seed(self, version: int) -> bytes:
        """The seed for the version made from this one; the same until `forget`. OSError when it cannot be written."""
        step, key = self._read()
        if step < 0 or step > version:
            step, key = version, secrets.token_bytes(_KEY_BYTES)
            self._write(step, key)
        elif step < version:
            key = _onward(key, version - step)
            self._write(version, key)
        return hashlib.sha256(b"noise" + key).digest()

    def forget(self, version: int) -> None:
        """Moves the key on once the version made from this one is recorded: its noise can never be drawn again."""
        step, key = self._read()
        if 0 <= step <= version:
            self._write(version + 1, _onward(key, version + 1 - step))

    def _read(self) -> tuple[int, bytes]:
        try:
            found = json.loads(self._path.read_bytes())
            step, key = int(found["version"]), bytes.fromhex(found["key"])
        except FileNotFoundError:
            return -1, b""
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            log.error("noise_key_damaged", path=str(self._path))
            return -1, b""
        return (step, key) if len(key) == _KEY_BYTES else (-1, b"")

    def _write(self, version: int, key: bytes) -> None:
        replace_file(self._path, json.dumps({"version": version, "key": key.hex()}).encode(), mode=PRIVATE)


def _onward(key: bytes, steps: int) -> bytes:
    for _ in range(steps):
        key = hashlib.sha256(b"next" + key).digest()
    return key
