"""`python -m actor`: reads the configuration first and imports the rest after, so that `--help` is instant."""

import os
import sys

from parlmesh.config import parse_arguments
from parlmesh.exit_codes import EXIT_CONFIGURATION
from parlmesh.grpc_engine import choose_engine
from parlmesh.kept_imports import kept_imports
from parlmesh.optional_packages import SERVER, require

from .config import ActorConfig

# One thread per slot does the arithmetic; more would compete for the same cores. Must be set before numpy is imported.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_SWITCH_SECONDS = 0.001


def main() -> int:
    """Runs an actor until it is told to stop; the result is the exit code."""
    config = parse_arguments("actor", ActorConfig, description="Runs tasks and collects experience for a fleet.")
    require("parlmesh-actor", "actor", *SERVER, "gymnasium", "safetensors", "xxhash")
    choose_engine()
    for name in _ONE_THREAD:
        os.environ.setdefault(name, "1")

    with kept_imports():
        from parlmesh.heap import keep_freed_memory
        from parlmesh.rpc import run_service
        from parlmesh.telemetry import configure_logging
        from parlmesh.telemetry.phase_profiler import profiled

        from .profile_phases import PHASES
        from .serve import serve

    keep_freed_memory()
    configure_logging(config.log, "actor")
    # A slot's thread that steps environments yields to the event loop within this time, so policies stay fresh.
    sys.setswitchinterval(_SWITCH_SECONDS)
    if config.profile is not None:
        try:
            config.profile.touch()
        except OSError as error:
            sys.stderr.write(f"error: profile cannot be written to {config.profile}: {error.strerror}\n")
            return EXIT_CONFIGURATION
    with profiled(config.profile, PHASES):
        return run_service(lambda stop: serve(config, stop))


if __name__ == "__main__":
    sys.exit(main())
