"""Lists, renews and revokes the certificates of a folder."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from parlmesh.errors import InvalidInput, NotFound

from .certificates import hosts_of, identity_of, issue
from .pem_files import AUTHORITY, read_certificates, read_pair, write_pair
from .revocation import read_revoked
from .secret_files import write_file

REVOKED_FILE = "revoked.txt"


@dataclass(frozen=True)
class Held:
    """One certificate of a folder."""

    name: str
    role: str
    hosts: tuple[str, ...]
    expires: datetime.datetime
    fingerprint: str
    revoked: bool

    def days_left(self, now: datetime.datetime) -> float:
        """Days until it expires; negative once it has."""
        return (self.expires - now) / datetime.timedelta(days=1)


def held_certificates(folder: Path) -> list[Held]:
    """All certificates of a folder: the authority first, then by name."""
    files = sorted(folder.glob("*.crt"), key=lambda file: (file.stem != AUTHORITY, file.stem))
    if not files:
        raise NotFound(f"{folder} has no certificates; make an authority with: parlmesh certs ca", folder=folder)
    revoked = read_revoked(folder / REVOKED_FILE) if (folder / REVOKED_FILE).exists() else frozenset()
    found = []
    for file in files:
        certificate = read_certificates(file)[0]
        identity = identity_of(certificate)
        role = "authority" if file.stem == AUTHORITY else identity.role.value if identity is not None else "server"
        print_ = fingerprint(certificate)
        out = print_ in revoked or hex(certificate.serial_number) in revoked
        found.append(Held(file.stem, role, hosts_of(certificate), certificate.not_valid_after_utc, print_, out))
    return found


def renew(
    folder: Path, names: Sequence[str], *, days: int, within_days: float, now: datetime.datetime
) -> list[tuple[Path, Path]]:
    """Makes new keys and certificates with the content of the old ones, for the given names or all that expire soon.

    Key and certificate are replaced one after the other; a process that reads in between keeps its old pair.
    """
    held = {each.name: each for each in held_certificates(folder) if each.name != AUTHORITY}
    for name in names:
        if name not in held:
            raise NotFound(f"{folder} has no certificate {name}; it has {', '.join(held) or 'none'}", name=name)
    ending = [name for name, each in held.items() if each.days_left(now) <= within_days and not each.revoked]
    authority = read_pair(folder / f"{AUTHORITY}.crt", folder / f"{AUTHORITY}.key")
    if authority.certificate.not_valid_after_utc <= now:
        raise InvalidInput(f"the authority of {folder} has expired; make a new one: parlmesh certs ca --force")
    written = []
    for name in names or ending:
        old = read_certificates(folder / f"{name}.crt")[0]
        identity = identity_of(old)
        pair = issue(
            authority,
            name,
            role=identity.role if identity is not None else None,
            namespace=identity.namespace if identity is not None else "",
            hosts=hosts_of(old),
            labels=dict(identity.labels) if identity is not None else None,
            days=days,
            now=now,
        )
        written.append(write_pair(pair, folder, name, force=True))
    return written


def revoke(folder: Path, name: str, *, now: datetime.datetime) -> Path:
    """Adds the certificate to the folder's list, which servers read as `security.revoked`."""
    if name == AUTHORITY:
        raise InvalidInput("an authority cannot be revoked; replace it: parlmesh certs ca --force", name=name)
    file = folder / f"{name}.crt"
    if not file.exists():
        raise NotFound(f"{folder} has no certificate {name}", name=name)
    found = fingerprint(read_certificates(file)[0])
    kept = folder / REVOKED_FILE
    # Parsed first, as servers parse it: never append to a file they could not read.
    if kept.exists() and found in read_revoked(kept):
        return kept
    before = kept.read_text(encoding="utf-8") if kept.exists() else ""
    separator = "" if not before or before.endswith("\n") else "\n"
    line = f"{found}  # {name}, {now:%Y-%m-%d}\n"
    write_file(kept, f"{before}{separator}{line}".encode(), mode=0o644)
    return kept


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 fingerprint, as servers compare it."""
    return certificate.fingerprint(hashes.SHA256()).hex()
