"""Proves an identity by certificate on every call, with a short-lived JWT signed by the certificate's key.

The certificate travels in the `x5c` header (RFC 7515, 4.1.6). Opens no connection and knows nothing of gRPC.
"""

import base64
import datetime
import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jwt
import jwt.types
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import verification

from parlmesh.errors import Unauthenticated
from parlmesh.telemetry import get_logger

from .certificates import identity_in, identity_of
from .identity import Identity

TYPE = "parlmesh-call+jwt"
ALGORITHM = "ES256"
LIFETIME_SECONDS = 60
CLOCK_SKEW_SECONDS = 30

_REFRESH_BEFORE_SECONDS = 30
_MOST_CERTIFICATES = 4
_LONGEST_ASSERTION = 16 * 1024
_MOST_REMEMBERED = 4096


log = get_logger("parlmesh.security")


def audience(host: str, service: str) -> str:
    """The audience of an assertion: one service, on a server whose certificate covers the host."""
    return f"parlmesh://{host.lower()}/{service}"


class Signer:
    """Makes assertions for one identity, and replaces each well before it expires."""

    def __init__(
        self,
        chain: Sequence[x509.Certificate],
        key: ec.EllipticCurvePrivateKey,
        host: str,
        now: Callable[[], float],
    ) -> None:
        self._host = host
        self._now = now
        self._made: dict[str, tuple[str, float]] = {}
        self.renew(chain, key)

    def renew(self, chain: Sequence[x509.Certificate], key: ec.EllipticCurvePrivateKey) -> None:
        """Signs with this certificate and key from now on."""
        self._x5c = [base64.b64encode(certificate.public_bytes(Encoding.DER)).decode() for certificate in chain]
        self._key = key
        self._made.clear()

    def assertion(self, service: str) -> str:
        """A valid assertion for calls to the service."""
        made = self._made.get(service)
        now = self._now()
        if made is None or now > made[1] - _REFRESH_BEFORE_SECONDS or now < made[1] - LIFETIME_SECONDS:
            made = self._made[service] = self._sign(service, int(now))
        return made[0]

    def _sign(self, service: str, issued: int) -> tuple[str, float]:
        expires = issued + LIFETIME_SECONDS
        claims = {"aud": audience(self._host, service), "iat": issued, "exp": expires}
        headers = {"typ": TYPE, "x5c": self._x5c}
        return jwt.encode(claims, self._key, algorithm=ALGORITHM, headers=headers), float(expires)


@dataclass(frozen=True)
class _Verified:
    identity: Identity
    audience: str
    expires: float


Revoked = Callable[[str, str], bool]
"""Whether the certificate with this serial number and fingerprint is revoked."""


class Verifier:
    """Accepts assertions whose certificates an authority signed, for the hosts in this server's certificate."""

    def __init__(
        self,
        authorities: Sequence[x509.Certificate],
        hosts: Sequence[str],
        now: Callable[[], float],
        revoked: Revoked = lambda serial, fingerprint: False,
    ) -> None:
        self._now = now
        self._revoked = revoked
        self._remembered: OrderedDict[str, _Verified] = OrderedDict()
        self.trust(authorities, hosts)

    def trust(self, authorities: Sequence[x509.Certificate], hosts: Sequence[str]) -> None:
        """Trusts only these authorities from now on; forgets all assertions verified before."""
        self._store = verification.Store(list(authorities))
        self._hosts = tuple(hosts)
        self._remembered.clear()

    def holds(self, proof: str) -> bool:
        """Whether the certificate behind a proof is not revoked."""
        serial, _, fingerprint = proof.partition(" ")
        return not self._revoked(serial, fingerprint)

    def identity(self, assertion: str, service: str) -> Identity:
        """The identity that made the assertion; raises Unauthenticated if it is not valid here and now."""
        now = self._now()
        verified = self._remembered.get(assertion)
        if verified is None:
            verified = self._verify(assertion, now)
            self._remembered[assertion] = verified
            if len(self._remembered) > _MOST_REMEMBERED:
                self._remembered.popitem(last=False)
        if not self.holds(verified.identity.proof):
            raise _refusal("the certificate is revoked", reason="REVOKED_CERTIFICATE", identity=verified.identity)
        if now > verified.expires + CLOCK_SKEW_SECONDS:
            self._remembered.pop(assertion, None)
            raise _refusal("the credential has expired", reason="EXPIRED_CREDENTIAL", identity=verified.identity)
        if not self._is_audience(verified.audience, service):
            raise _refusal(
                f"the credential is for {verified.audience}, not for {service} here",
                reason="WRONG_AUDIENCE",
                identity=verified.identity,
            )
        return verified.identity

    def _verify(self, assertion: str, now: float) -> _Verified:
        try:
            return self._verify_parsed(assertion, _chain(assertion), now)
        except Unauthenticated:
            raise
        except Exception as error:
            # Certificate parsers raise many exceptions, and the caller chooses the bytes.
            log.debug("credential_cannot_be_read", error=type(error).__name__)
            raise _malformed() from error

    def _verify_parsed(self, assertion: str, chain: Sequence[x509.Certificate], now: float) -> _Verified:
        identity = self._holder(chain, now)
        key = chain[0].public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise _refusal(
                "the certificate's key is not ECDSA P-256", reason="UNTRUSTED_CERTIFICATE", identity=identity
            )
        # The claims are checked below, against the clock that was passed in.
        checks: jwt.types.Options = {
            "verify_aud": False,
            "verify_exp": False,
            "verify_iat": False,
            "verify_nbf": False,
        }
        try:
            claims = jwt.decode(assertion, key, algorithms=[ALGORITHM], options=checks)
        except jwt.InvalidSignatureError:
            raise _refusal(
                "the certificate's key did not sign the credential", reason="WRONG_SIGNATURE", identity=identity
            ) from None
        return _checked(claims, identity, now)

    def _holder(self, chain: Sequence[x509.Certificate], now: float) -> Identity:
        moment = datetime.datetime.fromtimestamp(now, datetime.UTC)
        leaf = chain[0]
        try:
            subjects = self._subjects(chain, moment)
        except verification.VerificationError:
            if self._was_once_valid(chain, moment):
                raise _refusal(
                    "the certificate has expired", reason="EXPIRED_CERTIFICATE", identity=identity_of(leaf)
                ) from None
            raise _refusal(
                "the certificate is not from this fleet's authority", reason="UNTRUSTED_CERTIFICATE"
            ) from None
        uris = [name.value for name in subjects if isinstance(name, x509.UniformResourceIdentifier)]
        identity = identity_in(uris)
        if identity is None:
            raise _refusal("the certificate names no role and node", reason="UNTRUSTED_CERTIFICATE")
        return replace(identity, proof=proof_of(leaf))

    def _subjects(self, chain: Sequence[x509.Certificate], moment: datetime.datetime) -> Sequence[x509.GeneralName]:
        builder = verification.PolicyBuilder().store(self._store).time(moment).max_chain_depth(_MOST_CERTIFICATES)
        return builder.build_client_verifier().verify(chain[0], list(chain[1:])).subjects or ()

    def _was_once_valid(self, chain: Sequence[x509.Certificate], moment: datetime.datetime) -> bool:
        """Distinguishes this fleet's expired certificates from foreign ones, for the audit log."""
        leaf = chain[0]
        if moment <= leaf.not_valid_after_utc:
            return False
        try:
            self._subjects(chain, leaf.not_valid_after_utc)
        except verification.VerificationError:
            return False
        return True

    def _is_audience(self, claimed: str, service: str) -> bool:
        scheme, _, rest = claimed.partition("parlmesh://")
        host, _, called = rest.partition("/")
        return not scheme and called == service and any(_stands_for(name, host) for name in self._hosts)


def proof_of(certificate: x509.Certificate) -> str:
    """Serial number and fingerprint, the two ways to revoke a certificate."""
    return f"{hex(certificate.serial_number)} {certificate.fingerprint(hashes.SHA256()).hex()}"


def _chain(assertion: str) -> list[x509.Certificate]:
    if len(assertion) > _LONGEST_ASSERTION:
        raise _malformed()
    header = jwt.get_unverified_header(assertion)
    encoded = header.get("x5c")
    if header.get("typ") != TYPE or header.get("alg") != ALGORITHM or not isinstance(encoded, list):
        raise _malformed()
    if not 1 <= len(encoded) <= _MOST_CERTIFICATES:
        raise _malformed()
    return [x509.load_der_x509_certificate(base64.b64decode(one, validate=True)) for one in encoded]


def _checked(claims: dict[str, Any], identity: Identity, now: float) -> _Verified:
    claimed, issued, expires = claims.get("aud"), claims.get("iat"), claims.get("exp")
    if not isinstance(claimed, str) or not isinstance(issued, int) or not isinstance(expires, int):
        raise _malformed()
    if not 0 < expires - issued <= LIFETIME_SECONDS:
        raise _refusal(
            f"the credential lives {expires - issued} s; the limit is {LIFETIME_SECONDS}",
            reason="MALFORMED_CREDENTIAL",
            identity=identity,
        )
    if issued > now + CLOCK_SKEW_SECONDS:
        raise _refusal(
            "the credential is from the future; compare the clocks", reason="EXPIRED_CREDENTIAL", identity=identity
        )
    if now > expires + CLOCK_SKEW_SECONDS:
        raise _refusal("the credential has expired; compare the clocks", reason="EXPIRED_CREDENTIAL", identity=identity)
    return _Verified(identity, claimed, float(expires))


def _stands_for(name: str, host: str) -> bool:
    """Whether a name of the server's certificate covers the host, as in TLS."""
    if name.startswith("*."):
        return host.partition(".")[2] == name[2:].lower() and bool(host.partition(".")[0])
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(host)
    except ValueError:
        return name.lower() == host


def _malformed() -> Unauthenticated:
    return _refusal("the credential cannot be read", reason="MALFORMED_CREDENTIAL")


def _refusal(message: str, *, reason: str, identity: Identity | None = None) -> Unauthenticated:
    if identity is None:
        return Unauthenticated(message, reason=reason)
    return Unauthenticated(message, reason=reason, identity=identity)
