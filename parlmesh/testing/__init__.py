"""Test helpers: manual clocks, servers in the test's own process, real processes with deadlines."""

from .clocks import HandClock
from .patience import within
from .processes import Process, wait_until, wait_until_async
from .servers import free_port, serve

__all__ = ["HandClock", "Process", "free_port", "serve", "wait_until", "wait_until_async", "within"]
