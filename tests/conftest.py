"""Runs before anything imports numpy or gRPC: small matrices are fastest on one thread, since the tests share the
cores, and servers in a test's own process use the engine that the binaries choose."""

import gc
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from parlmesh.grpc_engine import choose_engine

# Objects made during collection stay until the end; searching them for garbage would take a tenth of the time.
gc.disable()

if TYPE_CHECKING:
    from parlmesh.testing.postgres import Cluster

# torch counts its threads on import: two that wait for each other on busy cores take thirty times as long.
assert "numpy" not in sys.modules, "numpy was imported before its threads were set to one"
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
# Trainers choose more threads for torch. Those that wait must not spin, as in the learner.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
choose_engine()

# The time an example takes depends more on the machine's other processes than on the code.
settings.register_profile("without deadline", deadline=None)
settings.load_profile("without deadline")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start processes mostly wait, so each worker begins with some of their files, chaos first, and other
    tests fill the gaps. Workers take equal stretches of the list."""
    files: dict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.path].append(item)

    def weight(file: Path) -> int:
        starts = any(item.get_closest_marker("e2e") is not None for item in files[file])
        return 0 if file.name == "test_chaos.py" else 1 if starts else 2

    stretches: list[list[pytest.Item]] = [[] for _ in range(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))]
    for file in sorted(files, key=weight):
        min(stretches, key=len).extend(files[file])
    items[:] = [item for stretch in stretches for item in stretch]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _only_its_own_tasks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Actors of a program's own fleet import every module in which it has decorated functions. This program has
    imported all tests, and scikit-learn with them: more than a second for each actor. A module of tests that needs
    tasks of other modules names those in `TASK_MODULES`."""
    from parlmesh.function_tasks import _registered

    wanted = {request.module.__name__, *getattr(request.module, "TASK_MODULES", ())}
    others = {kind: task for kind, task in _registered.items() if task.function.__module__ not in wanted}
    for kind in others:
        del _registered[kind]
    yield
    _registered.update(others)


@pytest.fixture(scope="session")
def postgres() -> "Iterator[Cluster]":
    """One PostgreSQL for all tests of a worker; each test has its own database."""
    from parlmesh.testing.postgres import Cluster, binaries

    if binaries() is None:
        pytest.skip("there are no binaries of PostgreSQL")
    with Cluster() as cluster:
        yield cluster
