"""The version of a service as a metric, to follow an upgrade."""

import platform
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import Gauge

BUILD_INFO = Gauge(
    "parlmesh_build_info",
    "Always 1; labelled with the service, its version and Python's.",
    ["service", "version", "python"],
)


def tell_build(service: str) -> None:
    """Sets the metric; called once per process."""
    try:
        found = version("parlmesh")
    except PackageNotFoundError:
        found = "unknown"
    BUILD_INFO.labels(service, found, platform.python_version()).set(1)
