"""Verifies tokens of an OpenID Connect issuer: signature, issuer, audience, time and role claim."""

import json
import threading
import urllib.request
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jwt
from jwt.exceptions import PyJWTError

from parlmesh.errors import ConfigError, FleetError, InvalidInput, Unauthenticated
from parlmesh.telemetry import get_logger

from .authorisation import ISSUER_PROOF
from .config import IssuerConfig
from .file_watch import WatchedFiles
from .identity import Identity, Role, check_name

CLOCK_SKEW_SECONDS = 30
_LARGEST_KEYS_BYTES = 1 << 20
_LONGEST_TOKEN = 16 * 1024
_MOST_REMEMBERED = 4096
_FETCH_SECONDS = 10.0
_FRESH_SECONDS = 300.0
_ASK_AGAIN_SECONDS = 10.0
_UNCHECKED: Any = {f"verify_{claim}": False for claim in ("aud", "exp", "iat", "iss", "jti", "nbf", "sub")}

log = get_logger("parlmesh.security")


class Keys:
    """The issuer's public keys by id, from a file that may change or from its address, fetched in a thread."""

    def __init__(self, config: IssuerConfig, monotonic: Callable[[], float]) -> None:
        self._config = config
        self._monotonic = monotonic
        self._watched = WatchedFiles([config.keys], monotonic)
        self._asking = threading.Lock()
        self._asked_at = monotonic()
        self.by_id = self._read()

    def renew(self, *, missing: bool) -> None:
        """Refreshes the keys when they are due. Keys from an address arrive in the background, for a later call."""
        if self._config.keys is not None:
            if self._watched.changed():
                self._take()
            return
        age = self._monotonic() - self._asked_at
        if age > (_ASK_AGAIN_SECONDS if missing else _FRESH_SECONDS) and self._asking.acquire(blocking=False):
            self._asked_at = self._monotonic()
            threading.Thread(target=self._ask, name="keys of the issuer", daemon=True).start()

    def _ask(self) -> None:
        try:
            self._take()
        finally:
            self._asking.release()

    def _take(self) -> None:
        try:
            self.by_id = self._read()
        except FleetError as error:
            log.error("issuer_keys_refused", why=error.message)
        else:
            log.info("issuer_keys_read", keys=len(self.by_id))

    def _read(self) -> dict[str, jwt.PyJWK]:
        where = self._config.keys or self._config.keys_url
        try:
            if self._config.keys is not None:
                with self._config.keys.open("rb") as file:
                    data = file.read(_LARGEST_KEYS_BYTES + 1)
            else:
                data = _fetch(self._config.keys_url)
            if len(data) > _LARGEST_KEYS_BYTES:
                raise ValueError(f"more than {_LARGEST_KEYS_BYTES} bytes")
            # A symmetric key proves nothing, because both sides know it.
            wanted = [key for key in json.loads(data)["keys"] if key["kty"] in ("RSA", "EC", "OKP")]
            return {str(key.get("kid", "")): jwt.PyJWK.from_dict(key) for key in wanted}
        except (OSError, ValueError, LookupError, TypeError, RecursionError, AttributeError, PyJWTError) as error:
            raise ConfigError(
                f"cannot read the issuer's keys from {where}: {str(error)!a:.200}", reason="SECURITY"
            ) from None


class IssuerVerifier:
    """Accepts tokens of one issuer for one audience."""

    def __init__(self, config: IssuerConfig, now: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._config = config
        self._now = now
        self._keys = Keys(config, monotonic)
        self._remembered: OrderedDict[str, tuple[jwt.PyJWK, Identity]] = OrderedDict()

    def identity(self, token: str) -> Identity:
        """The identity in the token; raises Unauthenticated if the token is not valid here and now."""
        self._keys.renew(missing=False)
        key, found = self._remembered.get(token, (None, None))
        if found is None or key not in self._keys.by_id.values():
            key, found = self._verified(token)
            self._remembered[token] = key, found
            if len(self._remembered) > _MOST_REMEMBERED:
                self._remembered.popitem(last=False)
        if not self.holds(found.proof):
            self._remembered.pop(token, None)
            raise Unauthenticated("the token has expired; compare the clocks", reason="EXPIRED_CREDENTIAL")
        return found

    def holds(self, proof: str) -> bool:
        """Whether the token behind a proof has not yet expired."""
        return self._now() <= float(proof.removeprefix(ISSUER_PROOF)) + CLOCK_SKEW_SECONDS

    def _verified(self, token: str) -> tuple[jwt.PyJWK, Identity]:
        try:
            if len(token) > _LONGEST_TOKEN:
                raise ValueError("too long")
            header = jwt.get_unverified_header(token)
        except (PyJWTError, ValueError, RecursionError):
            raise Unauthenticated("the token cannot be read", reason="MALFORMED_CREDENTIAL") from None
        if header.get("alg") not in self._config.algorithms:
            raise Unauthenticated("the token's signature algorithm is not accepted here", reason="MALFORMED_CREDENTIAL")
        key = self._keys.by_id.get(str(header.get("kid", "")))
        if key is None:
            self._keys.renew(missing=True)
            raise Unauthenticated("the issuer has no such key, or not yet", reason="UNKNOWN_KEY")
        try:
            claims = jwt.decode(token, key, algorithms=list(self._config.algorithms), options=_UNCHECKED)
        except (PyJWTError, ValueError, TypeError, RecursionError):
            raise Unauthenticated("the issuer's key did not sign the token", reason="WRONG_SIGNATURE") from None
        return key, self._identity(claims)

    def _identity(self, claims: dict[str, Any]) -> Identity:
        config, now = self._config, self._now()
        audiences = claims.get("aud")
        if claims.get("iss") != config.issuer:
            raise Unauthenticated(f"the token is not from {config.issuer}", reason="WRONG_ISSUER")
        if config.audience not in (audiences if isinstance(audiences, list) else [audiences]):
            raise Unauthenticated(f"the token is not for {config.audience}", reason="WRONG_AUDIENCE")
        expires, begins = _time(claims, "exp", None), max(_time(claims, "nbf", 0.0), _time(claims, "iat", 0.0))
        if begins > now + CLOCK_SKEW_SECONDS:
            raise Unauthenticated("the token is from the future; compare the clocks", reason="EXPIRED_CREDENTIAL")
        name, namespace = claims.get(config.name_claim), claims.get(config.namespace_claim, "")
        try:
            check_name(name if isinstance(name, str) else "")
            if namespace != "":
                check_name(namespace if isinstance(namespace, str) else "")
        except InvalidInput as error:
            raise Unauthenticated(
                f"the token has no valid name: {error.message}", reason="MALFORMED_CREDENTIAL"
            ) from None
        assert isinstance(name, str)
        return Identity(name, self._role(claims), namespace, f"{ISSUER_PROOF}{expires}")

    def _role(self, claims: dict[str, Any]) -> Role:
        held = claims.get(self._config.role_claim)
        held = held if isinstance(held, list) else [held]
        # The operator's order decides, not the issuer's.
        for value, role in self._config.roles.items():
            if value in held:
                return role
        raise Unauthenticated(
            f"the token has no role in {self._config.role_claim} that is known here", reason="NO_ROLE"
        )


def _time(claims: dict[str, Any], name: str, absent: float | None) -> float:
    value = claims.get(name, absent)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise Unauthenticated(f"the token's {name} is not a time", reason="MALFORMED_CREDENTIAL")
    return float(value)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _fetch(url: str) -> bytes:
    opener = urllib.request.build_opener(_NoRedirects)
    with opener.open(url, timeout=_FETCH_SECONDS) as answer:
        data: bytes = answer.read(_LARGEST_KEYS_BYTES + 1)
    return data
