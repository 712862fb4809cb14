"""`python -m scheduler`: parse, then build and serve."""

import sys

from parlmesh.config import parse_arguments
from parlmesh.grpc_engine import choose_engine
from parlmesh.kept_imports import kept_imports
from parlmesh.optional_packages import SERVER, require

from .config import SchedulerConfig


def main() -> int:
    config = parse_arguments(
        "scheduler", SchedulerConfig, description="Takes tasks, gives them to actors by priority, keeps their outcomes."
    )
    require("parlmesh-scheduler", "scheduler", *SERVER)
    if config.store.kind == "postgresql":
        require("store.kind=postgresql", "postgres", "asyncpg")
    choose_engine()
    # gRPC is imported after the arguments are known to be good, so that --help is instant.
    with kept_imports():
        from parlmesh.rpc import run_service

        from .serve import serve

    return run_service(lambda stop: serve(config, stop))


if __name__ == "__main__":
    sys.exit(main())
