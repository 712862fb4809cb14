"""Decides before every call whether the caller may make it. Knows nothing of gRPC."""

import base64
import json
import time
from collections.abc import Callable
from typing import Protocol

from parlmesh.addresses import is_loopback
from parlmesh.errors import ConfigError, PermissionDenied, Unauthenticated
from parlmesh.telemetry import get_logger

from .config import SecurityConfig
from .extra import require_extra
from .identity import ANYONE, Identity, Role
from .roles import NAMESPACED_METHODS, OPEN_METHODS, roles_for
from .tokens import TokenTable

Metadata = tuple[tuple[str, str | bytes], ...]

ISSUER_PROOF = "issuer:"
"""Prefix of a proof by an issuer's token; the expiry time follows."""
_LONGEST_HEAD = 16 * 1024

UNKNOWN = Identity("unknown", Role.READER)
"""The caller of an open method, whose credential is not checked."""

log = get_logger("parlmesh.security")


class Guard(Protocol):
    """Identifies callers and decides what they may call."""

    def identify(self, method: str, metadata: Metadata) -> Identity:
        """Identifies the caller; raises Unauthenticated without proof."""

    def permits(self, identity: Identity, method: str) -> bool:
        """Whether the identity may call the method."""

    def authorise(self, identity: Identity, method: str) -> None:
        """Raises PermissionDenied if the identity may not call the method."""

    def still_admits(self, identity: Identity) -> bool:
        """Whether the identity's proof is still valid."""


class OpenGuard:
    """Security is off: every caller may do everything."""

    def identify(self, method: str, metadata: Metadata) -> Identity:
        return ANYONE

    def permits(self, identity: Identity, method: str) -> bool:
        return True

    def authorise(self, identity: Identity, method: str) -> None:
        return

    def still_admits(self, identity: Identity) -> bool:
        return True


class AssertionVerifier(Protocol):
    """Interface of `signed_assertions.Verifier`, without the extra it needs."""

    def identity(self, assertion: str, service: str) -> Identity: ...

    def holds(self, proof: str) -> bool: ...


class TokenVerifier(Protocol):
    """Interface of `openid_tokens.IssuerVerifier`, without the extra it needs."""

    def identity(self, token: str) -> Identity: ...

    def holds(self, proof: str) -> bool: ...


class CredentialGuard:
    """Every call carries `authorization: Bearer <token or assertion>`."""

    def __init__(
        self, tokens: TokenTable | None, assertions: AssertionVerifier | None, issuer: TokenVerifier | None = None
    ) -> None:
        self._tokens = tokens
        self._assertions = assertions
        self._issuer = issuer

    def identify(self, method: str, metadata: Metadata) -> Identity:
        return UNKNOWN if method in OPEN_METHODS else self._authenticate(method, metadata)

    def permits(self, identity: Identity, method: str) -> bool:
        if method in OPEN_METHODS:
            return True
        return identity.role in roles_for(method) and (not identity.namespace or method in NAMESPACED_METHODS)

    def authorise(self, identity: Identity, method: str) -> None:
        if self.permits(identity, method):
            return
        if identity.namespace and method not in NAMESPACED_METHODS:
            raise PermissionDenied(
                f"{identity} may not call {method}; that needs an identity of the whole fleet",
                reason="NAMESPACE_NOT_ALLOWED",
                identity=identity,
                method=method,
            )
        raise PermissionDenied(
            f"{identity} may not call {method}; that needs {' or '.join(sorted(roles_for(method)))}",
            reason="ROLE_NOT_ALLOWED",
            identity=identity,
            method=method,
        )

    def still_admits(self, identity: Identity) -> bool:
        if identity.proof.startswith(ISSUER_PROOF):
            return self._issuer is not None and self._issuer.holds(identity.proof)
        if " " in identity.proof:
            return self._assertions is not None and self._assertions.holds(identity.proof)
        if not identity.proof:
            return True
        return self._tokens is not None and self._tokens.holder(identity.proof) == identity

    def _authenticate(self, method: str, metadata: Metadata) -> Identity:
        credential = _bearer(metadata)
        # An assertion or an issuer's token has two dots, a fleet token none. A node's assertion carries its
        # certificate.
        signed = credential.count(".") == 2
        if signed and self._issuer is not None and not (self._assertions is not None and has_certificate(credential)):
            return self._issuer.identity(credential)
        if signed and self._assertions is not None:
            return self._assertions.identity(credential, method.rpartition("/")[0].removeprefix("/"))
        identity = self._tokens.find(credential) if self._tokens is not None else None
        if identity is None:
            raise Unauthenticated("the token is not known here", reason="UNKNOWN_TOKEN")
        return identity


def build_guard(
    security: SecurityConfig,
    host: str,
    *,
    now: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
) -> Guard:
    """The guard of a server on that host; raises ConfigError for settings that are less safe than they look."""
    if not security.enabled:
        if not (security.insecure or is_loopback(host)):
            raise _refusal(
                f"security is not set, and listen.host {host} is open to other machines: set security.certificate, "
                "security.key and security.ca or security.tokens, listen on 127.0.0.1, or set security.insecure: true"
            )
        if not is_loopback(host):
            log.warning("security_is_off", host=host, meaning="everyone who reaches this port may do everything")
        return OpenGuard()
    if security.ca is not None and security.certificate is None:
        raise _refusal("security.ca is set without security.certificate and security.key: a server needs all three")
    if security.certificate is None and not is_loopback(host):
        raise _refusal(
            f"security.tokens without TLS would send tokens readable over the network: set security.certificate "
            f"and security.key, or listen on 127.0.0.1 (listen.host is {host})"
        )
    if not (security.ca or security.tokens or security.issuer):
        raise _refusal(
            "security.certificate is set, but none of security.ca, security.tokens, security.issuer says who may call"
        )
    tokens = TokenTable(security.tokens, monotonic) if security.tokens is not None else None
    issuer = None
    if security.issuer is not None:
        require_extra()
        from .openid_tokens import IssuerVerifier

        issuer = IssuerVerifier(security.issuer, now, monotonic)
    return CredentialGuard(tokens, _assertion_verifier(security, now, monotonic), issuer)


def _assertion_verifier(
    security: SecurityConfig, now: Callable[[], float], monotonic: Callable[[], float]
) -> AssertionVerifier | None:
    if security.ca is None or security.certificate is None:
        return None
    require_extra()
    from .pem_files import read_certificates
    from .reloading_verifier import FreshVerifier

    own = read_certificates(security.certificate)[0]
    if own.not_valid_after_utc.timestamp() < now():
        raise _refusal(f"{security.certificate} expired at {own.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    return FreshVerifier(security.ca, security.certificate, security.revoked, now, monotonic)


def has_certificate(credential: str) -> bool:
    """Whether the header of a signed credential contains a certificate; does not verify it."""
    head = credential.partition(".")[0]
    try:
        return "x5c" in json.loads(base64.urlsafe_b64decode(head[:_LONGEST_HEAD] + "=="))
    except (ValueError, TypeError, RecursionError):
        return False


def _bearer(metadata: Metadata) -> str:
    found = [value for key, value in metadata if key == "authorization"]
    if not found:
        raise Unauthenticated("no credential: send `authorization: Bearer <token>`", reason="NO_CREDENTIAL")
    scheme, _, credential = found[0].partition(" ") if isinstance(found[0], str) else ("", "", "")
    if len(found) > 1 or scheme.lower() != "bearer" or not credential:
        raise Unauthenticated("authorization must be `Bearer <token>`, once", reason="MALFORMED_CREDENTIAL")
    return credential


def _refusal(message: str) -> ConfigError:
    return ConfigError(message, reason="SECURITY")
