"""`python -m parlmesh.dashboard`: parse, then serve."""

import sys

from parlmesh.config import parse_arguments
from parlmesh.grpc_engine import choose_engine
from parlmesh.kept_imports import kept_imports
from parlmesh.optional_packages import require

from .config import DashboardConfig


def main() -> int:
    config = parse_arguments("dashboard", DashboardConfig, description="Shows a fleet in the browser.")
    require("parlmesh dashboard", "dashboard", "jinja2", "starlette", "uvicorn")
    choose_engine()
    # gRPC is imported after the arguments are parsed, so that --help is instant.
    with kept_imports():
        from parlmesh.rpc import run_service

        from .serve import give_way, serve

    give_way()
    return run_service(lambda stop: serve(config, stop))


if __name__ == "__main__":
    sys.exit(main())
