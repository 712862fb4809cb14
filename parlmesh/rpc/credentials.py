"""Builds gRPC credentials from the configuration, and the credential a client sends with every call."""

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from parlmesh.addresses import host_of, is_loopback
from parlmesh.errors import ConfigError
from parlmesh.security import SecurityConfig
from parlmesh.security.extra import require_extra
from parlmesh.security.file_watch import WatchedFiles
from parlmesh.telemetry import get_logger

log = get_logger("parlmesh.security")

Bearer = Callable[[str], str]
"""The credential for calls to a service, given its full name."""


def server_credentials(security: SecurityConfig) -> grpc.ServerCredentials | None:
    """None without a certificate."""
    if security.certificate is None or security.key is None:
        return None
    check_files(security)
    watched = WatchedFiles([security.ca, security.certificate, security.key], time.monotonic)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        """Called by grpc before every handshake, in its own thread; None changes nothing."""
        if not watched.changed():
            return None
        try:
            check_files(security)
            fresh = _server_files(security)
        except ConfigError as error:
            log.error("server_certificate_refused", why=error.message)
            return None
        log.info("server_certificate_read", certificate=security.certificate)
        return fresh

    # The stubs do not know that the answer may be None.
    fetch: Any = renewed
    return grpc.dynamic_ssl_server_credentials(
        _server_files(security), fetch, require_client_authentication=security.require_client_certificate
    )


def _server_files(security: SecurityConfig) -> grpc.ServerCertificateConfiguration:
    assert security.certificate is not None
    assert security.key is not None
    authority = _read(security.ca) if security.ca is not None and security.require_client_certificate else None
    return grpc.ssl_server_certificate_configuration(
        [(_read(security.key), _read(security.certificate))], root_certificates=authority
    )


def channel_credentials(security: SecurityConfig) -> grpc.ChannelCredentials | None:
    """None without an authority to trust."""
    if security.ca is None:
        return None
    check_files(security)
    return grpc.ssl_channel_credentials(
        root_certificates=_read(security.ca),
        private_key=_read(security.key) if security.key else None,
        certificate_chain=_read(security.certificate) if security.certificate else None,
    )


def bearer_for(address: str, security: SecurityConfig, now: Callable[[], float] = time.time) -> Bearer | None:
    """The token if there is one, else assertions signed with the certificate if it names a node, else nothing."""
    host = host_of(address)
    token = _token(security)
    if token is not None:
        if security.ca is None and not is_loopback(host):
            raise ConfigError(
                f"the token would be sent unencrypted to {address}: set security.ca to use TLS", reason="SECURITY"
            )
        return _token_bearer(token, security.token_file)
    if security.certificate is None or security.key is None:
        return None
    if security.ca is None:
        raise ConfigError(f"security.certificate needs security.ca to reach {address} over TLS", reason="SECURITY")
    require_extra()
    from parlmesh.security.certificates import identity_of
    from parlmesh.security.pem_files import read_certificates, read_pair
    from parlmesh.security.signed_assertions import Signer

    certificate, key = security.certificate, security.key
    watched = WatchedFiles([certificate, key], time.monotonic)
    pair = read_pair(certificate, key)
    if identity_of(pair.certificate) is None:
        return None
    signer = Signer(read_certificates(certificate), pair.key, host, now)

    def assertion(service: str) -> str:
        if watched.changed():
            try:
                signer.renew(read_certificates(certificate), read_pair(certificate, key).key)
            except ConfigError as error:
                # During a renewal the two may not match yet; the other file changes next.
                log.warning("certificate_refused", why=error.message)
        return signer.assertion(service)

    return assertion


def _token_bearer(token: str, file: Path | None) -> Bearer:
    """Sends the token; a token file is read again when it changes."""
    if file is None:
        return lambda service: token
    watched = WatchedFiles([file], time.monotonic)
    newest = [token]

    def read_again(service: str) -> str:
        if watched.changed():
            try:
                newest[0] = _checked_token(_read(file).decode(errors="replace"), str(file))
            except ConfigError as error:
                log.warning("token_refused", why=error.message)
        return newest[0]

    return read_again


def check_files(security: SecurityConfig) -> None:
    """Names a wrong file; grpc would find it only in the handshake, and not report it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for file in (security.ca, security.certificate, security.key):
        if file is not None:
            _read(file)
    if security.ca is not None:
        try:
            context.load_verify_locations(security.ca)
        except ssl.SSLError as error:
            raise _unusable(f"{security.ca} holds no PEM certificate", security.ca) from error
    if security.certificate is not None and security.key is not None:
        try:
            # An empty password keeps OpenSSL from asking for one at the terminal.
            context.load_cert_chain(security.certificate, security.key, password="")
        except (ssl.SSLError, ValueError) as error:
            raise _unusable(
                f"{security.certificate} and {security.key} are not a PEM certificate and its unencrypted key",
                security.certificate,
            ) from error


def _token(security: SecurityConfig) -> str | None:
    if security.token is not None:
        return _checked_token(security.token.get_secret_value(), "security.token")
    if security.token_file is not None:
        return _checked_token(_read(security.token_file).decode(errors="replace"), str(security.token_file))
    return None


def _checked_token(text: str, origin: str) -> str:
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{origin} must hold one token of printable ASCII characters", reason="SECURITY")
    return token


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise _unusable(f"cannot read {file}: {(error.strerror or str(error)).lower()}", file) from error


def _unusable(message: str, file: Path) -> ConfigError:
    return ConfigError(message, reason="SECURITY", file=file)
