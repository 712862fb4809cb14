"""Logs to stderr, and measures waiting time.

Metrics for Prometheus are in `parlmesh.telemetry.metrics_page`, which needs the `server` extra.
"""

from .logging import Logger, bind, configure_logging, get_logger
from .wait_share import Waiting

__all__ = ["Logger", "Waiting", "bind", "configure_logging", "get_logger"]
