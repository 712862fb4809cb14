"""Per-node tokens. A server keeps only their digests, so its file is no secret."""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from parlmesh.config import Config
from parlmesh.errors import ConfigError, FleetError
from parlmesh.telemetry import get_logger

from .files import refuse_existing, write_file
from .identity import NAME_PATTERN, Identity, Role, check_name

TOKENS_FILE = "tokens.yaml"

_LARGEST_FILE_BYTES = 16 * 1024 * 1024
_LOOK_AGAIN_SECONDS = 1.0

log = get_logger("parlmesh.security")


class TokenRow(Config):
    """One accepted token."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    role: Role
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def new_token() -> str:
    """256 random bits as text."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """What the server's file holds of a token. The token is random, so a plain hash cannot be searched."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_rows(file: Path) -> list[TokenRow]:
    """The rows of a token file; ConfigError when any of them is wrong."""
    try:
        if file.stat().st_size > _LARGEST_FILE_BYTES:
            raise ConfigError(f"{file} is larger than {_LARGEST_FILE_BYTES} bytes", reason="SECURITY", file=file)
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        rows = TypeAdapter(list[TokenRow]).validate_python(content or [])
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}", reason="SECURITY", file=file) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"{file} must be a list of {{name, role, sha256}}: row {place or 0}: {first['msg'].lower()}",
            reason="SECURITY",
            file=file,
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise ConfigError(f"{file} is not valid YAML", reason="SECURITY", file=file) from None
    if len({row.sha256 for row in rows}) < len(rows):
        raise ConfigError(f"{file} has the same sha256 twice", reason="SECURITY", file=file)
    return rows


def write_token(folder: Path, name: str, role: Role, *, force: bool) -> tuple[Path, str]:
    """Writes `<name>.token` and its row in `tokens.yaml`, and returns both; `force` replaces the name's old token."""
    check_name(name)
    token = new_token()
    row = TokenRow(name=name, role=role, sha256=digest(token))
    file, table = folder / f"{name}.token", folder / TOKENS_FILE
    refuse_existing([file], force=force)
    rows = [old for old in read_rows(table) if old.name != name] if table.exists() else []
    folder.mkdir(parents=True, exist_ok=True)
    write_file(file, f"{token}\n".encode(), mode=0o600)
    write_file(table, "".join(f"{_line(each)}\n" for each in [*rows, row]).encode(), mode=0o644)
    return file, _line(row)


def _line(row: TokenRow) -> str:
    """Quoted, because a name or a digest may look like a number."""
    return f'- {{name: "{row.name}", role: {row.role}, sha256: "{row.sha256}"}}'


class TokenTable:
    """The accepted tokens. A changed file is read again; a broken one is reported and the last good one kept."""

    def __init__(self, file: Path, monotonic: Callable[[], float]) -> None:
        self._file = file
        self._monotonic = monotonic
        self._looked_at = monotonic()
        self._version = self._file_version()
        self._rows = {row.sha256: row for row in read_rows(file)}

    def find(self, token: str) -> Identity | None:
        """Whose token it is."""
        self._read_again()
        # The lookup is by digest, which a caller cannot steer towards one of ours.
        presented = digest(token)
        row = self._rows.get(presented)
        if row is None or not hmac.compare_digest(row.sha256, presented):
            return None
        return Identity(row.name, row.role)

    def _read_again(self) -> None:
        if self._monotonic() - self._looked_at < _LOOK_AGAIN_SECONDS:
            return
        self._looked_at = self._monotonic()
        version = self._file_version()
        if version == self._version:
            return
        self._version = version
        try:
            self._rows = {row.sha256: row for row in read_rows(self._file)}
        except FleetError as error:
            log.error("token_file_refused", file=self._file, why=error.message)
        else:
            log.info("token_file_read", file=self._file, rows=len(self._rows))

    def _file_version(self) -> tuple[int, int] | None:
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size
