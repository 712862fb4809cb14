"""Logs on stderr and metrics for Prometheus."""

from .logging import Logger, bind, configure_logging, get_logger
from .metrics import MetricsServer, serve_metrics

__all__ = ["Logger", "MetricsServer", "bind", "configure_logging", "get_logger", "serve_metrics"]
