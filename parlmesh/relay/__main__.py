"""`python -m parlmesh.relay`: parse, then serve."""

import sys
from collections.abc import Sequence

from parlmesh.config import parse_arguments
from parlmesh.grpc_engine import choose_engine
from parlmesh.kept_imports import kept_imports
from parlmesh.optional_packages import SERVER, require

from .config import RelayConfig


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the process."""
    config = parse_arguments("relay", RelayConfig, argv, description="Hands policies on to the actors of one site.")
    require("parlmesh-relay", "relay", *SERVER, "safetensors")
    choose_engine()
    # Import gRPC only after parsing the arguments, so that --help is instant.
    with kept_imports():
        from parlmesh.rpc import run_service
        from parlmesh.telemetry import configure_logging

        from .serve import serve

    configure_logging(config.log, "relay")
    return run_service(lambda stop: serve(config, stop))


if __name__ == "__main__":
    sys.exit(main())
