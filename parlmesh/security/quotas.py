"""The limits of one identity at a server, with their defaults. Servers and services check them."""

from pydantic import Field

from parlmesh.config import Config


class QuotaConfig(Config):
    """Limits per identity; meant to stop broken and hostile clients, never busy ones."""

    streams: int = Field(default=1000, ge=1)
    """Open streams of one identity to one server."""
    calls_per_second: float = Field(default=5000.0, gt=0)
    """Calls of one identity to one server, on average; ten seconds' worth may come at once."""
    bytes_per_second: float = Field(default=float(256 << 20), gt=0)
    """Bytes one actor or reader may send to one server; one second's worth may come at once, further messages wait."""
    loop_share: float = Field(default=0.25, gt=0, le=1)
    """Share of a server's event loop for the calls and messages of one actor or reader; beyond it they wait."""
    team_loop_share: float = Field(default=0.5, gt=0, le=1)
    """Such bytes for all operators of one namespace together."""
    unread_calls: int = Field(default=4, ge=1)
    """Calls of one actor, reader or namespace operator whose requests are read at the same time; others wait."""
    refusals_per_second: float = Field(default=50.0, gt=0)
    """Calls of one identity that may end with PERMISSION_DENIED or INVALID_ARGUMENT, on average; ten seconds' worth may
    come at once. Beyond that, all calls of the identity are refused until enough time has passed."""
    tasks: int = Field(default=500_000, ge=1)
    """Schedulers: unfinished tasks of one identity, or of one namespace as a whole."""
    task_bytes: int = Field(default=1 << 30, ge=1)
    """Schedulers: bytes of these tasks: payloads, and names of dependencies and placements with 64 more bytes each."""
    tasks_per_second: float = Field(default=50_000.0, gt=0)
    """Schedulers: tasks they may submit per second, on average; ten seconds' worth may come at once."""
    placements: int = Field(default=1_000, ge=1)
    """Schedulers: distinct combinations of kind and placement among their tasks with a placement; the scheduler checks
    each one whenever an actor asks for work."""
    watched_bytes: int = Field(default=16 << 20, ge=1)
    """Schedulers: bytes of ids in all open watches of one reader or namespace identity; each id counts 64 more."""
