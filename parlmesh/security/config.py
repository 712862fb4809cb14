"""The security section of every configuration. Opens no file."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from parlmesh.config import Config

from .identity import Role


class QuotaConfig(Config):
    """What one identity may have or do at a time; meant to stop the broken and the hostile, never the busy."""

    streams: int = Field(default=1000, ge=1)
    """Open streams of one identity to one server."""
    calls_per_second: float = Field(default=5000.0, gt=0)
    """Calls of one identity to one server, in the long run; ten seconds' worth may come at once."""
    bytes_per_second: float = Field(default=float(256 << 20), gt=0)
    """What one actor or reader may send to one server; one second's worth may come at once, further messages wait."""
    loop_share: float = Field(default=0.25, gt=0, le=1)
    """Share of a server's event loop for the calls and messages of one actor or reader; further ones wait."""
    team_loop_share: float = Field(default=0.5, gt=0, le=1)
    """The same for all operators of one namespace together."""
    unread_calls: int = Field(default=4, ge=1)
    """Calls of one actor, reader or operator of a namespace whose requests are read at the same time; others wait."""
    refusals_per_second: float = Field(default=50.0, gt=0)
    """Calls of one identity that end with PERMISSION_DENIED or INVALID_ARGUMENT, in the long run; ten seconds' worth
    may come at once, and beyond that nothing of it is looked at until the time has passed."""
    tasks: int = Field(default=500_000, ge=1)
    """Schedulers: unfinished tasks of one identity, or of all of one namespace together."""
    task_bytes: int = Field(default=1 << 30, ge=1)
    """Schedulers: bytes of those: payloads, and the names that they depend on or are placed by, with 64 for each."""
    tasks_per_second: float = Field(default=50_000.0, gt=0)
    """Schedulers: tasks they may submit, in the long run; ten seconds' worth may come at once."""
    placements: int = Field(default=1_000, ge=1)
    """Schedulers: different kinds and placements among those tasks that are placed at all: each is looked at whenever
    an actor asks for work."""
    watched_bytes: int = Field(default=16 << 20, ge=1)
    """Schedulers: ids in all open watches of one reader, or of one identity of a namespace; each counts 64 more."""


class IssuerConfig(Config):
    """An OpenID Connect issuer whose tokens servers accept."""

    issuer: str = Field(min_length=1)
    """What its tokens have as `iss`, letter by letter."""
    audience: str = Field(min_length=1)
    """What must be among their `aud`."""
    keys: Path | None = None
    """File with its public keys (JSON Web Key Set), read again when it changes; or"""
    keys_url: str = ""
    """the https address of it, asked every five minutes and when a key is missing."""
    algorithms: tuple[Literal["ES256", "ES384", "RS256", "RS384", "RS512", "PS256", "EdDSA"], ...] = ("ES256", "RS256")
    name_claim: str = "sub"
    """Claim with the name of the identity."""
    role_claim: str = "roles"
    """Claim with one or more words, of which the first in `roles` counts."""
    roles: dict[str, Role] = Field(min_length=1)
    """Role by word of the role claim."""
    namespace_claim: str = ""
    """Claim with the namespace; empty = all are of the whole fleet."""

    @model_validator(mode="after")
    def _has_keys(self) -> Self:
        if (self.keys is None) == (not self.keys_url):
            raise ValueError("issuer needs keys or keys_url, one of them")
        if self.keys_url and not self.keys_url.startswith("https://"):
            raise ValueError(f"keys_url must begin with https://, got {self.keys_url}")
        return self


class SecurityConfig(Config):
    """Certificates and tokens; everything left out means no security."""

    ca: Path | None = None
    """Certificate of the authority that signed servers and nodes (PEM)."""
    certificate: Path | None = None
    """This process's certificate (PEM, the chain after it)."""
    key: Path | None = None
    """Private key of the certificate (PEM)."""
    require_client_certificate: bool = False
    """Servers also demand a certificate of the authority in the TLS handshake."""
    tokens: Path | None = None
    """Servers: YAML list of {name, role, sha256} of the tokens that are accepted."""
    issuer: IssuerConfig | None = None
    """Servers: whose OpenID Connect tokens are accepted too."""
    revoked: Path | None = None
    """Servers: file of revoked certificates, one SHA-256 fingerprint or serial number (0x…) a line."""
    token: SecretStr | None = None
    """Clients: the token to send."""
    token_file: Path | None = None
    """Clients: file that holds the token to send."""
    quotas: QuotaConfig = QuotaConfig()
    insecure: bool = False
    """Servers: listen beyond this machine although there is no security: everyone who gets there may do everything."""

    @property
    def enabled(self) -> bool:
        """Whether a server with these settings asks who calls."""
        return bool(self.ca or self.certificate or self.tokens or self.issuer)

    @property
    def answers_strangers(self) -> bool:
        """Whether who proves nothing gets as far as a call, which is then refused."""
        return self.enabled and not self.require_client_certificate

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            given, wanting = ("certificate", "key") if self.key is None else ("key", "certificate")
            raise ValueError(f"{given} is set without {wanting}")
        if self.token is not None and self.token_file is not None:
            raise ValueError("token and token_file are both set; keep one")
        if self.revoked is not None and (self.ca is None or self.certificate is None):
            raise ValueError("revoked needs ca, certificate and key: it is about certificates of callers")
        if self.insecure and (self.ca or self.certificate or self.tokens or self.issuer):
            raise ValueError("insecure is for servers without security, and ca, certificate, tokens or issuer are set")
        if self.require_client_certificate and (self.ca is None or self.certificate is None):
            raise ValueError("require_client_certificate needs ca, certificate and key")
        return self
