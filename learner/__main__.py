"""Starts the learner: parse, build, serve."""

import os
import sys
from collections.abc import Sequence

from parlmesh.config import parse_arguments
from parlmesh.grpc_engine import choose_engine
from parlmesh.kept_imports import kept_imports
from parlmesh.optional_packages import SERVER, require

from .config import LearnerConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code of the process."""
    config = parse_arguments(
        "learner", LearnerConfig, argv, description="Serves policies, takes in experience, trains."
    )
    require("parlmesh-learner", "learner", *SERVER, "gymnasium", "safetensors", "tensorboard", "xxhash")
    # Small matrices are fastest on one thread, and the other cores belong to the actors.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    from .ranks.torchrun import Launcher

    launcher = Launcher.found()
    if launcher is not None and launcher.rank > 0:
        return launcher.follow()
    choose_engine()
    # Waiting threads of torch must not spin on cores that the actors need.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Imported after parsing, so that --help is instant.
    with kept_imports():
        from parlmesh.heap import keep_freed_memory
        from parlmesh.rpc import run_service
        from parlmesh.telemetry import configure_logging
        from parlmesh.telemetry.phase_profiler import profiled

        from .profile_phases import PHASES
        from .serve import serve

    keep_freed_memory()
    configure_logging(config.log, "learner")
    with profiled(config.profile, PHASES):
        return run_service(lambda stop: serve(config, stop))


if __name__ == "__main__":
    sys.exit(main())
