"""The leases that one actor holds, the results it owes and the credits it has sent. Decides nothing about running
tasks; no I/O, no clock."""

from collections import deque
from collections.abc import Iterable

from parlmesh.v1.fleet_service_pb2 import Lease, TaskResult


class Ledger:
    """Leases held, results not yet acknowledged, and credits given to the scheduler.

    A lease is held from its assignment to its result, and owed from the result to the acknowledgement. Both survive
    a broken stream; credits do not.
    """

    def __init__(self, *, slots: int, unacknowledged_limit: int) -> None:
        self._slots = slots
        self._unacknowledged_limit = unacknowledged_limit
        self._held: dict[int, Lease] = {}
        self._owed: dict[int, TaskResult] = {}
        self._unsent: deque[int] = deque()
        self._granted = 0

    @property
    def held(self) -> int:
        """Assignments that have no result yet."""
        return len(self._held)

    @property
    def owed(self) -> int:
        """Results that are not acknowledged yet."""
        return len(self._owed)

    @property
    def has_unsent(self) -> bool:
        """Whether a result waits to be sent."""
        return bool(self._unsent)

    def held_leases(self) -> list[Lease]:
        """Leases to renew."""
        return list(self._held.values())

    def reconnect(self) -> list[Lease]:
        """Starts a new stream: every owed result must be sent again, no credit is valid. Returns the leases to name."""
        self._granted = 0
        self._unsent = deque(self._owed)
        return [*self._held.values(), *(result.lease for result in self._owed.values())]

    def keep(self, standing: Iterable[int]) -> list[int]:
        """Forgets results of leases that are no longer valid and returns the held leases to stop."""
        kept = set(standing)
        for lease_id in [lease_id for lease_id in self._owed if lease_id not in kept]:
            del self._owed[lease_id]
        return [lease_id for lease_id in self._held if lease_id not in kept]

    def spend(self, lease_id: int) -> bool:
        """Counts an assignment against the credits; False when its lease is already known."""
        if self._granted:
            self._granted -= 1
        return lease_id not in self._held and lease_id not in self._owed

    def hold(self, lease: Lease) -> None:
        """Keeps a lease until there is a result."""
        self._held[lease.lease_id] = lease

    def owe(self, lease_id: int, result: TaskResult) -> None:
        """Keeps a result until it is acknowledged."""
        self._owed[lease_id] = result
        self._unsent.append(lease_id)

    def finish(self, lease_id: int, result: TaskResult) -> bool:
        """Turns a held lease into an owed result; False when the lease is no longer held."""
        if self._held.pop(lease_id, None) is None:
            return False
        self.owe(lease_id, result)
        return True

    def drop(self, lease_id: int) -> bool:
        """Forgets a lease that was taken back, with its result; False when it was not held."""
        self._owed.pop(lease_id, None)
        return self._held.pop(lease_id, None) is not None

    def acknowledge(self, lease_id: int) -> None:
        """Forgets a result that the scheduler has recorded or refused for good."""
        self._owed.pop(lease_id, None)

    def grant(self, prefetch: int) -> int:
        """Credits to send now, so that free slots and the prefetch are covered and the owed results stay bounded."""
        promised = len(self._held) + self._granted
        credits = min(self._slots + prefetch, self._unacknowledged_limit - len(self._owed)) - promised
        if credits <= 0:
            return 0
        self._granted += credits
        return credits

    def take_results(self, *, limit: int, limit_bytes: int) -> list[TaskResult]:
        """Results that fit in one message, oldest first; they are still owed."""
        taken: list[TaskResult] = []
        size = 0
        while self._unsent and len(taken) < limit:
            result = self._owed.get(self._unsent[0])
            if result is not None:
                size += result.ByteSize()
                if taken and size > limit_bytes:
                    break
                taken.append(result)
            self._unsent.popleft()
        return taken
