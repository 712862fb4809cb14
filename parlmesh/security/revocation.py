"""Revoked certificates, by serial number or fingerprint, from a file that may change."""

import re
from collections.abc import Callable
from pathlib import Path

from parlmesh.errors import ConfigError, FleetError
from parlmesh.telemetry import get_logger

from .file_watch import WatchedFiles

_LARGEST_FILE_BYTES = 16 * 1024 * 1024
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_SERIAL = re.compile(r"0x[0-9a-f]{1,40}")

log = get_logger("parlmesh.security")


def read_revoked(file: Path) -> frozenset[str]:
    """One SHA-256 fingerprint (64 digits, colons allowed) or serial number (`0x…`) per line; `#` starts a comment."""
    try:
        if file.stat().st_size > _LARGEST_FILE_BYTES:
            raise ConfigError(f"{file} is larger than {_LARGEST_FILE_BYTES} bytes", reason="SECURITY", file=file)
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}", reason="SECURITY", file=file) from error
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text", reason="SECURITY", file=file) from None
    revoked = set()
    for number, line in enumerate(lines, 1):
        word = line.partition("#")[0].strip().lower().replace(":", "")
        if not word:
            continue
        if _SERIAL.fullmatch(word):
            word = hex(int(word, 16))
        elif not _FINGERPRINT.fullmatch(word):
            raise ConfigError(
                f"{file} line {number} is neither a SHA-256 fingerprint of 64 hexadecimal digits nor a serial 0x…",
                reason="SECURITY",
                file=file,
            )
        revoked.add(word)
    return frozenset(revoked)


class RevokedCertificates:
    """The revoked certificates. A missing or broken file is logged, and revoked certificates stay revoked."""

    def __init__(self, file: Path | None, monotonic: Callable[[], float]) -> None:
        self._file = file
        self._watched = WatchedFiles([file], monotonic)
        self._revoked = read_revoked(file) if file is not None else frozenset()

    def holds(self, serial: str, fingerprint: str) -> bool:
        """Whether a certificate is revoked; `serial` as hex() writes it, `fingerprint` in lower case."""
        if self._file is not None and self._watched.changed():
            try:
                self._revoked = read_revoked(self._file)
            except FleetError as error:
                log.error("revocation_file_refused", file=self._file, why=error.message)
            else:
                log.info("revocation_file_read", file=self._file, rows=len(self._revoked))
        return serial in self._revoked or fingerprint in self._revoked
