"""Why a TLS handshake fails: gRPC reports UNAVAILABLE for a wrong certificate as well as for an unreachable server."""

import contextlib
import socket
import ssl
import time

from parlmesh.addresses import host_of
from parlmesh.security import SecurityConfig

_SECONDS = 3.0
_AGAIN_SECONDS = 0.3
# Every HTTP/2 client sends this first; a server that refuses the client's certificate answers it with an alert.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)
_LONGEST_FRAME = 1024


def refusal(address: str, security: SecurityConfig) -> str:
    """Why the two sides do not trust each other; empty if they do, or if no server answers. Blocks for seconds."""
    host = host_of(address)
    if not host:
        return ""
    port = int(address.rpartition(":")[2])
    found = ""
    for pause in (0.0, _AGAIN_SECONDS):  # twice, because a server that stops ends connections too
        time.sleep(pause)
        try:
            with socket.create_connection((host, port), timeout=_SECONDS) as connection:
                if security.ca is None:
                    found = _wants_tls(connection, address)
                else:
                    found = _handshake(connection, host, address, security)
        except OSError:
            return ""  # away, and perhaps back soon
        if not found:
            return ""
    return found


def _handshake(connection: socket.socket, host: str, address: str, security: SecurityConfig) -> str:
    context = ssl.create_default_context(cafile=str(security.ca))
    context.set_alpn_protocols(["h2"])
    if security.certificate is not None and security.key is not None:
        context.load_cert_chain(security.certificate, security.key, password="")
    try:
        with context.wrap_socket(connection, server_hostname=host) as encrypted:
            return _first_words(encrypted, address, security)
    except ssl.SSLCertVerificationError as error:
        return f"the certificate of {address} is not trusted by security.ca {security.ca}: {error.verify_message}"
    except ssl.SSLError as error:
        why = (error.reason or str(error)).replace("_", " ").lower()
        return f"{address} does not speak TLS as security.ca demands: {why}"


def _first_words(encrypted: ssl.SSLSocket, address: str, security: SecurityConfig) -> str:
    """A server that accepts the connection answers; gRPC ends it without a word if it refuses the certificate."""
    try:
        encrypted.sendall(_PREFACE)
        if encrypted.recv(_LONGEST_FRAME):
            return ""
    except TimeoutError:
        return ""
    except OSError as error:
        if not isinstance(error, (ssl.SSLError, ConnectionError)):
            return ""
    if security.certificate is None:
        return f"{address} wants a certificate of its authority: set security.certificate and security.key"
    return f"{address} refused security.certificate {security.certificate}: it is of another authority or has expired"


def _wants_tls(connection: socket.socket, address: str) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with contextlib.suppress(OSError), context.wrap_socket(connection):
        return f"{address} speaks TLS; set security.ca, and security.token_file or security.certificate and key"
    return ""
