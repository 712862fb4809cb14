"""Makes and reads certificates of an authority, servers and nodes. ECDSA P-256 throughout; touches no file.

The URI `spiffe://parlmesh/<role>/<name>` names a node, so that another issuer of such names can take over. A second
URI, `parlmesh://node/<name>?zone=eu`, holds the labels that the authority attests.
"""

import datetime
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, urlencode

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from parlmesh.errors import InvalidInput

from .identity import NAME_PATTERN, Identity, Role, check_name

TRUST_DOMAIN = "parlmesh"
_LABELS_PREFIX = "parlmesh://node/"

_BACKDATED = datetime.timedelta(minutes=5)  # for nodes whose clocks are behind
_MOST_DAYS = 36500
_MOST_LABELS = 16
_LABEL_VALUE = r"[A-Za-z0-9._ /-]{0,128}"
_ROLES = frozenset(role.value for role in Role)


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def node_uri(identity: Identity) -> str:
    """The URI that names an identity in a certificate."""
    within = f"namespace/{identity.namespace}/" if identity.namespace else ""
    return f"spiffe://{TRUST_DOMAIN}/{within}{identity.role}/{identity.name}"


def identity_from_uri(uri: str) -> Identity | None:
    """The inverse of `node_uri`; None for any other URI."""
    scheme, _, path = uri.partition(f"spiffe://{TRUST_DOMAIN}/")
    namespace = ""
    if path.startswith("namespace/"):
        namespace, _, path = path.removeprefix("namespace/").partition("/")
        if not re.fullmatch(NAME_PATTERN, namespace):
            return None
    role, _, name = path.partition("/")
    if scheme or role not in _ROLES or not re.fullmatch(NAME_PATTERN, name):
        return None
    return Identity(name, Role(role), namespace)


def labels_uri(name: str, labels: Mapping[str, str]) -> str:
    """The URI with the labels that a certificate attests for a node."""
    if len(labels) > _MOST_LABELS:
        raise InvalidInput(f"a certificate takes at most {_MOST_LABELS} labels, got {len(labels)}")
    for label, value in labels.items():
        check_name(label)
        if not re.fullmatch(_LABEL_VALUE, value):
            raise InvalidInput(f'label {label} must be at most 128 of letters, digits, "._ /-", got "{value}"')
    return f"{_LABELS_PREFIX}{name}?{urlencode(sorted(labels.items()))}"


def identity_in(uris: Sequence[str]) -> Identity | None:
    """The identity in a certificate's URIs: exactly one, with at most one list of labels, which has the same name."""
    said = [uri for uri in uris if uri.startswith(_LABELS_PREFIX)]
    names = [uri for uri in uris if not uri.startswith(_LABELS_PREFIX)]
    identity = identity_from_uri(names[0]) if len(names) == 1 and len(said) <= 1 else None
    if identity is None or not said:
        return identity
    name, _, query = said[0].removeprefix(_LABELS_PREFIX).partition("?")
    try:
        labels = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=_MOST_LABELS))
        if name != identity.name or labels_uri(name, labels) != said[0]:
            return None
    except (ValueError, InvalidInput):
        return None
    return replace(identity, labels=tuple(labels.items()))


def identity_of(certificate: x509.Certificate) -> Identity | None:
    """The identity in a certificate, if it names exactly one; does not verify the certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, ValueError):
        return None
    return identity_in(uris)


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """The DNS names and IP addresses in a server's certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    addresses = names.get_values_for_type(x509.IPAddress)
    return (*names.get_values_for_type(x509.DNSName), *(str(address) for address in addresses))


def make_authority(name: str, *, days: int, now: datetime.datetime) -> Pair:
    """Makes a self-signed certificate that signs others."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(name, key, issuer=_subject(name), days=days, now=now)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    return Pair(builder.sign(key, hashes.SHA256()), key)


def issue(
    authority: Pair,
    name: str,
    *,
    role: Role | None = None,
    namespace: str = "",
    hosts: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    days: int,
    now: datetime.datetime,
) -> Pair:
    """Issues a certificate for a server (`hosts`), a node (`role`), or a process that is both."""
    check_name(name)
    if namespace:
        check_name(namespace)
    if role is None and not hosts:
        raise InvalidInput(f"the certificate of {name} needs a role or at least one DNS name or IP address")
    names: list[x509.GeneralName] = [_host_name(host) for host in hosts]
    usages = [ExtendedKeyUsageOID.SERVER_AUTH] if hosts else []
    if role is not None:
        names.append(x509.UniformResourceIdentifier(node_uri(Identity(name, role, namespace))))
        usages.append(ExtendedKeyUsageOID.CLIENT_AUTH)
        if labels:
            names.append(x509.UniformResourceIdentifier(labels_uri(name, labels)))
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(name, key, issuer=authority.certificate.subject, days=days, now=now)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(issuer_key, critical=False)
    return Pair(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    *,
    issuer: x509.Name,
    days: int,
    now: datetime.datetime,
) -> x509.CertificateBuilder:
    check_name(name)
    if not 1 <= days <= _MOST_DAYS:
        raise InvalidInput(f"days must be >= 1 and <= {_MOST_DAYS}, got {days}", days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, TRUST_DOMAIN),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not re.fullmatch(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*", host) or len(host) > 253:
        raise InvalidInput(f'"{host}" is neither a DNS name nor an IP address', host=host)
    return x509.DNSName(host.lower())
