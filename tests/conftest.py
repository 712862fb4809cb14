"""Before anything imports numpy or gRPC: small matrices are fastest on one thread, since the tests share the cores, and
servers in a test's own process use the engine that the binaries choose."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from parlmesh.grpc_engine import choose_engine
from parlmesh.testing.postgres import Cluster, binaries

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
choose_engine()

# How long an example takes says more about the other processes of the machine than about the code.
settings.register_profile("without deadline", deadline=None)
settings.load_profile("without deadline")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests wait more than they compute: one worker begins with them, and the others take the rest."""
    items.sort(key=lambda item: "test_chaos" not in item.nodeid)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """One PostgreSQL for all tests of a worker; each takes a database of its own."""
    if binaries() is None:
        pytest.skip("there are no binaries of PostgreSQL")
    with Cluster() as cluster:
        yield cluster
