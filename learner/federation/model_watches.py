"""Sends processes the model that their nodes are to start from, before they ask for it."""

import asyncio
from collections.abc import Iterable

from .model_versions import StoredModel


class Watcher:
    """One process. It gets the newest version offered, and none twice."""

    def __init__(self, have_version: int) -> None:
        self._sent = have_version
        self._owed: StoredModel | None = None
        self._changed = asyncio.Event()
        self._closed = False

    def offer(self, model: StoredModel) -> None:
        """Replaces an older version that has not been sent yet."""
        if model.version > self._sent:
            self._owed = model
            self._changed.set()

    def close(self) -> None:
        """Ends the watch: nothing more will be offered."""
        self._closed = True
        self._changed.set()

    async def next(self) -> StoredModel | None:
        """Waits for the next version to send; None when there will be none."""
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
        """Adds a watcher for these hosts' nodes; `remove` must follow."""
        watcher = Watcher(have_version)
        for host in set(hosts):
            self._by_host.setdefault(host, []).append(watcher)
        if self._closed:
            watcher.close()
        return watcher

    def remove(self, watcher: Watcher) -> None:
        """Forgets a watcher that has gone."""
        for host, watchers in list(self._by_host.items()):
            if watcher in watchers:
                watchers.remove(watcher)
            if not watchers:
                del self._by_host[host]

    def offer(self, hosts: Iterable[str], model: StoredModel) -> None:
        """Offers a model that nodes of these hosts are asked to start from."""
        for host in set(hosts):
            for watcher in self._by_host.get(host, ()):
                watcher.offer(model)

    def close(self) -> None:
        """Closes all watchers: the federation has ended, or the learner stops."""
        self._closed = True
        for watchers in self._by_host.values():
            for watcher in watchers:
                watcher.close()
