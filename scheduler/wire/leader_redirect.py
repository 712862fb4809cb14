"""Gives the servicers the shell. While another scheduler leads there is none, and callers are redirected."""

from collections.abc import Callable

from parlmesh.errors import Unavailable

from ..shell import Shell


class Seat:
    """Given to the servicers once; taken and left as leadership changes."""

    def __init__(self) -> None:
        self._shell: Shell | None = None
        self._trusted: Callable[[], bool] | None = None
        self.leader = ""
        self.standbys = 0

    @property
    def shell(self) -> Shell:
        """Unavailable, with the leader's address, unless this scheduler leads and can be sure of it."""
        if self._shell is None or (self._trusted is not None and not self._trusted()):
            raise self.refusal()
        return self._shell

    def take(self, shell: Shell, trusted: Callable[[], bool] | None = None) -> None:
        self._shell, self._trusted, self.leader = shell, trusted, ""

    def leave(self) -> None:
        self._shell = None

    def refusal(self) -> Unavailable:
        if self._shell is not None:
            message = "this scheduler's lease on the database has lapsed; try again"
        else:
            others = f" with {self.standbys - 1} more" if self.standbys > 1 else ""
            at = f"; the leader is at {self.leader}" if self.leader else " and none leads yet"
            message = f"this scheduler stands by{others}{at}"
        return Unavailable(message, reason="NOT_LEADER", leader=self.leader, standbys=self.standbys)
