"""How many of the fleet's slots a namespace may hold. Part of the core: no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..task import Task

if TYPE_CHECKING:
    from ...config import SchedulerConfig
    from .ready_queue import Lane
    from .task_class import TaskClass


class Share:
    """One namespace's share. `blocked` are lanes whose tasks wait for it and for nothing else."""

    __slots__ = ("blocked", "held", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self.blocked: dict[Lane, TaskClass] = {}


class Shares:
    """Shares by owner. Only namespaces have one, so without security there are none."""

    def __init__(self, config: SchedulerConfig | None = None) -> None:
        self._config = config if config is not None and config.security.enabled else None
        self._slots = 0
        self._shares: dict[str, Share] = {}

    def of(self, task: Task) -> Share | None:
        """The share that the task's lease counts against."""
        owner = task.owner
        if not owner or owner[-1] != "/" or self._config is None:
            return None
        share = self._shares.get(owner)
        if share is None:
            share = self._shares[owner] = Share(self._most(owner))
        return share

    def resize(self, slots: int) -> list[Share]:
        """Takes the fleet's present slots; returns the shares that have grown and that lanes wait for."""
        if slots == self._slots:
            return []
        self._slots = slots
        grown = []
        for owner, share in self._shares.items():
            before, share.most = share.most, self._most(owner)
            if share.blocked and share.most > before:
                grown.append(share)
        return grown

    def _most(self, owner: str) -> int:
        assert self._config is not None
        allowed = self._config.namespaces.get(owner[:-1], self._config.namespace)
        return max(1, int(allowed.slots_share * self._slots))
