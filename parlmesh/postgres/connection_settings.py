"""The database's address and password. The password is never shown."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from parlmesh.errors import ConfigError

SCHEMES = ("postgresql", "postgres")


@dataclass(frozen=True, slots=True)
class Target:
    """A database by its address; of several hosts, the first that accepts writes is used."""

    url: str
    password: str = field(default="", repr=False)
    password_file: Path | None = None

    def secret(self) -> str | None:
        """The current password; a file is read again each time, as it may change. None = libpq's own sources."""
        if self.password_file is None:
            return self.password or None
        try:
            return self.password_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(f"store.password_file {self.password_file} cannot be read: {why}") from None

    def __str__(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.netloc.rpartition('@')[2]}{parts.path}"


def check_url(url: str) -> None:
    """Raises ValueError for an address that is not of a PostgreSQL database or contains a password."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ValueError(
            f"url begins with {parts.scheme or 'no scheme'!r}; it must be postgresql://user@host:port/name"
        )
    user, _, _ = parts.netloc.rpartition("@")
    if ":" in user or any(name == "password" for name, _ in parse_qsl(parts.query)):
        raise ValueError("url contains a password, which every log would show; put it into password_file")
