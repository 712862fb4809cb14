"""The security section of every configuration. Opens no file."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from parlmesh.config import Config

from .identity import Role
from .quotas import QuotaConfig


class IssuerConfig(Config):
    """An OpenID Connect issuer whose tokens servers accept."""

    issuer: str = Field(min_length=1)
    """The exact `iss` of its tokens."""
    audience: str = Field(min_length=1)
    """An audience that their `aud` must contain."""
    keys: Path | None = None
    """File with its public keys (JSON Web Key Set), reloaded when it changes. Set this or keys_url."""
    keys_url: str = ""
    """https address of its public keys, fetched every five minutes and when a key is missing."""
    algorithms: tuple[Literal["ES256", "ES384", "RS256", "RS384", "RS512", "PS256", "EdDSA"], ...] = ("ES256", "RS256")
    name_claim: str = "sub"
    """Claim with the name of the identity."""
    role_claim: str = "roles"
    """Claim with one or more values; the first entry of `roles` among them counts."""
    roles: dict[str, Role] = Field(min_length=1)
    """Role by value of the role claim."""
    namespace_claim: str = ""
    """Claim with the namespace; empty = identities belong to the whole fleet."""

    @model_validator(mode="after")
    def _has_keys(self) -> Self:
        if (self.keys is None) == (not self.keys_url):
            raise ValueError("issuer needs keys or keys_url, one of them")
        if self.keys_url and not self.keys_url.startswith("https://"):
            raise ValueError(f"keys_url must begin with https://, got {self.keys_url}")
        return self


class SecurityConfig(Config):
    """Certificates and tokens; an empty section means no security."""

    ca: Path | None = None
    """Certificate of the authority that signed servers and nodes (PEM)."""
    certificate: Path | None = None
    """This process's certificate (PEM, followed by its chain)."""
    key: Path | None = None
    """Private key of the certificate (PEM)."""
    require_client_certificate: bool = False
    """Servers also require a certificate of the authority in the TLS handshake."""
    tokens: Path | None = None
    """Servers: YAML list of accepted tokens as {name, role, sha256}."""
    issuer: IssuerConfig | None = None
    """Servers: an OpenID Connect issuer whose tokens are accepted too."""
    revoked: Path | None = None
    """Servers: file of revoked certificates, one SHA-256 fingerprint or serial number (0x…) per line."""
    token: SecretStr | None = None
    """Clients: the token to send."""
    token_file: Path | None = None
    """Clients: file that holds the token to send."""
    quotas: QuotaConfig = QuotaConfig()
    insecure: bool = False
    """Servers: listen beyond this machine without security; every host that can reach the server may do everything."""

    @property
    def enabled(self) -> bool:
        """Whether a server with these settings authenticates callers."""
        return bool(self.ca or self.certificate or self.tokens or self.issuer)

    @property
    def answers_strangers(self) -> bool:
        """Whether a caller without any proof can make a call, which is then refused."""
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
