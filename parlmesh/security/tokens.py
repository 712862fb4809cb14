"""Per-node tokens. A server stores only their digests, so its file is not secret."""

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

from .file_watch import WatchedFiles
from .identity import NAME_PATTERN, Identity, Role, check_name
from .secret_files import refuse_existing, write_file

TOKENS_FILE = "tokens.yaml"

_LARGEST_FILE_BYTES = 16 * 1024 * 1024

log = get_logger("parlmesh.security")


class TokenRow(Config):
    """One accepted token."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    role: Role
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    namespace: Annotated[str, Field(pattern=rf"^$|{NAME_PATTERN}")] = ""


def new_token() -> str:
    """256 random bits as text."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """The digest of a token in the server's file. A plain hash is safe, because the token is random."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_rows(file: Path) -> list[TokenRow]:
    """The rows of a token file; raises ConfigError if any row is invalid."""
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


def write_token(folder: Path, name: str, role: Role, *, force: bool, namespace: str = "") -> tuple[Path, str]:
    """Writes `<name>.token` and its row in `tokens.yaml`, and returns both; `force` replaces the name's old token."""
    check_name(name)
    if namespace:
        check_name(namespace)
    token = new_token()
    row = TokenRow(name=name, role=role, sha256=digest(token), namespace=namespace)
    file, table = folder / f"{name}.token", folder / TOKENS_FILE
    refuse_existing([file], force=force)
    rows = [old for old in read_rows(table) if old.name != name] if table.exists() else []
    folder.mkdir(parents=True, exist_ok=True)
    write_file(file, f"{token}\n".encode(), mode=0o600)
    write_file(table, "".join(f"{_line(each)}\n" for each in [*rows, row]).encode(), mode=0o644)
    return file, _line(row)


def _line(row: TokenRow) -> str:
    """A row of the file; quoted, because a name or a digest may look like a number."""
    within = f', namespace: "{row.namespace}"' if row.namespace else ""
    return f'- {{name: "{row.name}", role: {row.role}, sha256: "{row.sha256}"{within}}}'


class TokenTable:
    """The accepted tokens. A changed file is reloaded; a broken one is logged, and the last good one is kept.

    While the file is missing, no caller is accepted.
    """

    def __init__(self, file: Path, monotonic: Callable[[], float]) -> None:
        self._file = file
        self._watched = WatchedFiles([file], monotonic)
        self._rows = {row.sha256: row for row in read_rows(file)}

    def find(self, token: str) -> Identity | None:
        """The holder of the token."""
        # Looked up by digest, which a caller cannot steer towards an accepted one.
        presented = digest(token)
        found = self.holder(presented)
        return found if found is not None and hmac.compare_digest(found.proof, presented) else None

    def holder(self, sha256: str) -> Identity | None:
        """The holder of the token with that digest."""
        self._read_again()
        row = self._rows.get(sha256)
        return Identity(row.name, row.role, row.namespace, row.sha256) if row is not None else None

    def _read_again(self) -> None:
        if not self._watched.changed():
            return
        try:
            self._rows = {row.sha256: row for row in read_rows(self._file)}
        except FleetError as error:
            log.error("token_file_refused", file=self._file, why=error.message)
            if not self._file.exists():
                self._rows = {}
        else:
            log.info("token_file_read", file=self._file, rows=len(self._rows))
