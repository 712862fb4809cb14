"""Processes that are sent what their nodes are asked to start from, before they ask for it."""

import asyncio
from collections.abc import Iterable

from .model_versions import StoredModel


class Watcher:
    """One process. It is owed the newest version that was offered, and none twice."""

    def __init__(self, have_version: int) -> None:
        self._sent = have_version
        self._owed: StoredModel | None = None
        self._changed = asyncio.Event()
        self._closed = False

    def offer(self, model: StoredModel) -> None:
        """Takes the place of an older one that was not sent yet."""
        if model.version > self._sent:
            self._owed = model
            self._changed.set()

    def close(self) -> None:
        """Nothing more will be offered."""
        self._closed = True
        self._changed.set()

    async def next(self) -> StoredModel | None:
        """Waits for a version that is owed; None when there will be none."""
        while self._owed is None and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        model, self._owed = self._owed, None
        if model is not None:
            self._sent = model.version
        return model


class Watchers:
    """All processes that watch one federation."""

    def __init__(self) -> None:
        self._by_host: dict[str, list[Watcher]] = {}
        self._closed = False

    def add(self, hosts: Iterable[str], have_version: int) -> Watcher:
        """From now on it is owed what the nodes of these hosts are asked; `remove` must follow."""
        watcher = Watcher(have_version)
        for host in set(hosts):
            self._by_host.setdefault(host, []).append(watcher)
        if self._closed:
            watcher.close()
        return watcher

    def remove(self, watcher: Watcher) -> None:
        """It has gone."""
        for host, watchers in list(self._by_host.items()):
            if watcher in watchers:
                watchers.remove(watcher)
            if not watchers:
                del self._by_host[host]

    def offer(self, hosts: Iterable[str], model: StoredModel) -> None:
        """Nodes of these hosts are asked to start from it."""
        for host in set(hosts):
            for watcher in self._by_host.get(host, ()):
                watcher.offer(model)

    def close(self) -> None:
        """The federation has ended, or the learner stops."""
        self._closed = True
        for watchers in self._by_host.values():
            for watcher in watchers:
                watcher.close()
