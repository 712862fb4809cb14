"""Logs on stderr and metrics for Prometheus."""

from .logging import Logger, bind, configure_logging, get_logger
from .metrics import MetricsServer, serve_metrics
from .waiting import Waiting

__all__ = ["Logger", "MetricsServer", "Waiting", "bind", "configure_logging", "get_logger", "serve_metrics"]
