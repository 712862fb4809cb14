from hypothesis import given
from hypothesis import strategies as st

from parlmesh.client.worker_processes import WORKERS_PER_PROCESS, processes_for, shares


@given(st.integers(1, 100_000), st.integers(1, 256))
def test_workers_are_spread_evenly_over_few_processes(workers: int, cores: int) -> None:
    count = processes_for(workers, cores)
    parts = shares(workers, count)
    assert sum(parts) == workers
    assert 1 <= min(parts) <= max(parts) <= WORKERS_PER_PROCESS
    assert max(parts) - min(parts) <= 1
    assert count <= max(cores, -(-workers // WORKERS_PER_PROCESS))


def test_a_hundred_workers_need_a_process_per_core_and_never_one_each() -> None:
    assert [processes_for(100, cores) for cores in (1, 2, 64)] == [1, 2, 10]
    assert [processes_for(workers, 8) for workers in (1, 10, 11, 10_000)] == [1, 1, 2, 10]
