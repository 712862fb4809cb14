"""Reads and writes certificates and keys as PEM files, for `parlmesh certs` and every process."""

import datetime
import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from parlmesh.errors import ConfigError, InvalidInput, NotFound

from .certificates import Pair, hosts_of, issue, make_authority
from .identity import Role
from .secret_files import refuse_existing, write_file

AUTHORITY = "ca"

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
# Raised by the certificate parser besides ValueError.
_UNREADABLE = (x509.DuplicateExtension, x509.InvalidVersion, x509.UnsupportedGeneralNameType)


def write_authority(folder: Path, *, name: str, days: int, force: bool) -> tuple[Path, Path]:
    """Writes `ca.crt` and `ca.key`. Replacing them invalidates every certificate of the old authority."""
    return write_pair(make_authority(name, days=days, now=_now()), folder, AUTHORITY, force=force)


def write_certificate(
    folder: Path,
    name: str,
    *,
    role: Role | None,
    hosts: Sequence[str],
    days: int,
    force: bool,
    namespace: str = "",
    labels: Mapping[str, str] | None = None,
) -> tuple[Path, Path]:
    """Writes `<name>.crt` and `<name>.key`, signed by the folder's authority."""
    if name == AUTHORITY:
        raise InvalidInput(f'the name "{AUTHORITY}" is taken by the authority', name=name)
    certificate, key = folder / f"{AUTHORITY}.crt", folder / f"{AUTHORITY}.key"
    if not certificate.exists() or not key.exists():
        raise NotFound(f"{folder} has no authority; make one with: parlmesh certs ca", folder=folder)
    authority = read_pair(certificate, key)
    pair = issue(authority, name, role=role, namespace=namespace, hosts=hosts, labels=labels, days=days, now=_now())
    return write_pair(pair, folder, name, force=force)


def server_hosts(dns: Sequence[str], addresses: Sequence[str]) -> list[str]:
    """The names of a server; this machine's names if none are given."""
    for address in addresses:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise InvalidInput(f'"{address}" is not an IP address', address=address) from None
    return [*dns, *addresses] or list(_THIS_MACHINE)


def write_pair(pair: Pair, folder: Path, name: str, *, force: bool = False) -> tuple[Path, Path]:
    """Writes `<name>.crt` and `<name>.key` (mode 0600), or neither when one exists and `force` is off."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    refuse_existing([certificate, key], force=force)
    folder.mkdir(parents=True, exist_ok=True)
    secret = pair.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_file(key, secret, mode=0o600)
    write_file(certificate, pair.certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)
    return certificate, key


def read_pair(certificate: Path, key: Path) -> Pair:
    """Reads a certificate and its key, and checks that they belong together."""
    chain = read_certificates(certificate)
    try:
        found = serialization.load_pem_private_key(_read(key), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{key} is not an unencrypted PEM private key", reason="SECURITY", file=key) from error
    if not isinstance(found, ec.EllipticCurvePrivateKey) or not isinstance(found.curve, ec.SECP256R1):
        raise ConfigError(f"{key} is not an ECDSA P-256 key", reason="SECURITY", file=key)
    if found.public_key() != chain[0].public_key():
        raise ConfigError(f"{key} is not the key of {certificate}", reason="SECURITY", file=key)
    return Pair(chain[0], found)


def read_certificates(file: Path) -> list[x509.Certificate]:
    """All certificates of a PEM file, at least one."""
    try:
        found = x509.load_pem_x509_certificates(_read(file))
        for certificate in found:
            # Both are parsed lazily; parse them now rather than in the middle of a call.
            certificate.public_key()
            hosts_of(certificate)
        return found
    except (ValueError, UnsupportedAlgorithm, *_UNREADABLE) as error:
        raise ConfigError(f"{file} holds no PEM certificate", reason="SECURITY", file=file) from error


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}", reason="SECURITY", file=file) from error


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
