"""Decides who may view the page and who may act. Knows tokens, sessions and origins, but nothing of the fleet."""

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from parlmesh.addresses import is_loopback
from parlmesh.security import Role
from parlmesh.security.tokens import TokenTable

from .config import DashboardConfig

COOKIE = "parlmesh_session"
SESSION_SECONDS = 12 * 3_600.0
MOST_SESSIONS = 1_000
MOST_OWN_SESSIONS = 50
FAILURES_PER_MINUTE = 30
"""Failed logins of one address."""
ALL_FAILURES_PER_MINUTE = 3_000
_MOST_ADDRESSES = 10_000


@dataclass(frozen=True)
class Visitor:
    """A visitor who may view the page."""

    name: str
    may_act: bool
    csrf: str
    """Token in every form of this visitor; no other site can know it."""
    session: str = ""


@dataclass(frozen=True)
class _Session:
    proof: str
    ends: float


class Access:
    """Without `tokens`, every visitor on this machine is an operator, as with the scheduler itself."""

    def __init__(self, config: DashboardConfig, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._monotonic = monotonic
        self._secret = secrets.token_bytes(32)
        self._tokens = TokenTable(config.tokens, monotonic) if config.tokens is not None else None
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        self._all_failures: deque[float] = deque(maxlen=ALL_FAILURES_PER_MINUTE)

    @property
    def needs_login(self) -> bool:
        return self._tokens is not None

    @property
    def secure(self) -> bool:
        """Whether browsers reach the page over TLS."""
        return self._config.certificate is not None or self._config.behind_proxy

    def admits_host(self, host: str) -> bool:
        """Whether a request names this machine; another site whose name resolves to this machine does not."""
        if self._tokens is not None or self._config.behind_proxy:
            return True
        name = urlsplit(f"//{host}").hostname or ""
        return is_loopback(name) and name != ""

    def visitor(self, cookies: Mapping[str, str]) -> Visitor | None:
        """The visitor; None if they must log in first."""
        if self._tokens is None:
            return Visitor("you", not self._config.read_only, self._csrf("everyone on this machine"))
        session_id = cookies.get(COOKIE, "")
        session = self._sessions.get(session_id)
        if session is None or session.ends < self._monotonic():
            return None
        # Removing a token from the file also ends its sessions.
        identity = self._tokens.holder(session.proof)
        if identity is None:
            return None
        may_act = identity.role == Role.OPERATOR and not self._config.read_only
        return Visitor(identity.name, may_act, self._csrf(session_id), session_id)

    def address(self, peer: str, headers: Mapping[str, str]) -> str:
        """The address a request comes from; behind a proxy, the last address that the proxy added."""
        forwarded = headers.get("x-forwarded-for", "") if self._config.behind_proxy else ""
        return forwarded.rpartition(",")[2].strip()[:100] or peer

    def throttled(self, address: str) -> bool:
        """Whether too many wrong tokens came from the address within the last minute; a visitor cannot lock out others.
        Wrong tokens from very many addresses throttle only addresses that sent one: every other address gets a first
        try."""
        now = self._monotonic()
        failures = self._failures.get(address)
        _forget(self._all_failures, now - 60)
        if failures is None:
            return False
        _forget(failures, now - 60)
        return len(failures) >= FAILURES_PER_MINUTE or (
            bool(failures) and len(self._all_failures) >= ALL_FAILURES_PER_MINUTE
        )

    def log_in(self, token: str, address: str = "") -> str:
        """A new session's id; empty if the token gives no access."""
        assert self._tokens is not None
        identity = self._tokens.find(token)
        # The page shows the whole fleet, which an identity of a namespace may not see and an actor need not see.
        if identity is None or identity.namespace or identity.role not in (Role.OPERATOR, Role.READER):
            self._count_failure(address)
            return ""
        session_id = secrets.token_urlsafe(32)
        self._sessions[session_id] = _Session(identity.proof, self._monotonic() + SESSION_SECONDS)
        own = [name for name, session in self._sessions.items() if session.proof == identity.proof]
        for name in own[:-MOST_OWN_SESSIONS]:
            del self._sessions[name]
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return session_id

    def _count_failure(self, address: str) -> None:
        now = self._monotonic()
        self._failures.setdefault(address, deque(maxlen=FAILURES_PER_MINUTE)).append(now)
        self._failures.move_to_end(address)
        if len(self._failures) > _MOST_ADDRESSES:
            self._failures.popitem(last=False)
        self._all_failures.append(now)

    def log_out(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)

    def own_form(self, visitor: Visitor, csrf: str, headers: Mapping[str, str]) -> bool:
        """Whether a form came from one of our pages."""
        return same_origin(headers) and hmac.compare_digest(csrf.encode(), visitor.csrf.encode())

    def _csrf(self, of: str) -> str:
        return hmac.new(self._secret, of.encode(), hashlib.sha256).hexdigest()


def _forget(times: deque[float], before: float) -> None:
    while times and times[0] < before:
        times.popleft()


def same_origin(headers: Mapping[str, str]) -> bool:
    """Whether the browser says that a form comes from this site."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    from_site = urlsplit(origin).netloc
    return bool(from_site) and from_site in (headers.get("host"), headers.get("x-forwarded-host"))
