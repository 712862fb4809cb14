"""A verifier that reloads its authority, its server's certificate and the list of revoked certificates."""

from collections.abc import Callable
from pathlib import Path

from parlmesh.errors import FleetError
from parlmesh.telemetry import get_logger

from .certificates import hosts_of
from .file_watch import WatchedFiles
from .identity import Identity
from .pem_files import read_certificates
from .revocation import RevokedCertificates
from .signed_assertions import Verifier

log = get_logger("parlmesh.security")


class FreshVerifier:
    """Reloads changed files; a broken file is logged, and the last good content is kept."""

    def __init__(
        self,
        ca: Path,
        certificate: Path,
        revoked: Path | None,
        now: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._ca = ca
        self._certificate = certificate
        self._watched = WatchedFiles([ca, certificate], monotonic)
        self._revoked = RevokedCertificates(revoked, monotonic)
        own = read_certificates(certificate)[0]
        self._verifier = Verifier(read_certificates(ca), hosts_of(own), now, self._revoked.holds)

    def identity(self, assertion: str, service: str) -> Identity:
        """Who made the assertion."""
        if self._watched.changed():
            try:
                own = read_certificates(self._certificate)[0]
                self._verifier.trust(read_certificates(self._ca), hosts_of(own))
            except FleetError as error:
                log.error("certificates_refused", why=error.message)
            else:
                log.info("certificates_read", ca=self._ca, certificate=self._certificate)
        return self._verifier.identity(assertion, service)

    def holds(self, proof: str) -> bool:
        """Whether the certificate behind a proof is not revoked."""
        return self._verifier.holds(proof)
