"""Which version of which service a process is, as a metric: what an upgrade is watched by."""

import platform
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import Gauge

BUILD_INFO = Gauge(
    "parlmesh_build_info", "1, with the service, its version and Python's.", ["service", "version", "python"]
)


def tell_build(service: str) -> None:
    """Sets it, once for a process."""
    try:
        found = version("parlmesh")
    except PackageNotFoundError:
        found = "unknown"
    BUILD_INFO.labels(service, found, platform.python_version()).set(1)
