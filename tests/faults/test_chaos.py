"""A fleet of real processes under seeded faults: nothing lost, nothing doubled, nothing stalled."""

import os
from pathlib import Path

import pytest

from parlmesh.testing.postgres import Cluster, binaries
from tools.faults import memory, shim
from tools.faults.chaos import run_chaos
from tools.faults.memory import Sample
from tools.faults.schedule import FAULTS, make_plan

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not shim.available(), reason="there is no gcc to compile the shim with"),
]

SHORT_SEEDS = (117, 286)
# Minutes of the long run; `make nightly` takes an hour.
SOAK_MINUTES = float(os.environ.get("PARLMESH_SOAK_MINUTES", "60"))


async def live_through(seed: int, seconds: float, folder: Path) -> None:
    report = await run_chaos(make_plan(seed, seconds), folder / "fleet")
    print(report.text())
    assert not report.problems, f"{report.text()}\nreplay: tools/chaos.py --seed {seed} --seconds {seconds:g}\n" + (
        "\n".join(report.problems[:20])
    )
    assert sum(report.faults.values()) > seconds / 10, "the faults took place"
    assert report.acknowledged > 0
    assert report.finished_runs > 0
    assert report.scrapes > 0


@pytest.mark.timeout(420)
@pytest.mark.parametrize("seed", SHORT_SEEDS)
async def test_no_promise_is_broken_in_a_minute_of_faults(tmp_path: Path, seed: int) -> None:
    await live_through(seed, 60.0, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_no_promise_is_broken_in_three_minutes_of_faults_on_postgresql(tmp_path: Path) -> None:
    if binaries() is None:
        pytest.skip("there are no binaries of PostgreSQL")
    with Cluster(fsync=True) as database:
        report = await run_chaos(make_plan(5, 180.0, store="postgresql"), tmp_path / "fleet", database)
    assert not report.problems, f"{report.text()}\n" + "\n".join(report.problems[:20])
    assert any(name.endswith("_database") for name in report.faults), "the faults of the database took place"


def test_the_two_short_runs_have_every_fault_between_them() -> None:
    assert {fault.name for seed in SHORT_SEEDS for fault in make_plan(seed, 60.0).faults} == set(FAULTS)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", range(5))
async def test_no_promise_is_broken_in_ten_minutes_of_faults(tmp_path: Path, seed: int) -> None:
    await live_through(seed, 600.0, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(6000)
async def test_no_promise_is_broken_in_an_hour_of_faults_and_memory_stays_flat(tmp_path: Path) -> None:
    await live_through(7, SOAK_MINUTES * 60, tmp_path)


def test_a_seed_decides_everything_and_other_seeds_differ() -> None:
    assert make_plan(3, 120.0) == make_plan(3, 120.0)
    assert make_plan(3, 120.0) != make_plan(4, 120.0)


def test_many_seeds_vary_everything_that_can_vary() -> None:
    plans = [make_plan(seed, 120.0) for seed in range(40)]
    assert {fault.name for plan in plans for fault in plan.faults} == set(FAULTS)
    assert len({plan.scheduler["retention.max_tasks"] for plan in plans}) == 3
    assert {actor["slots"] for plan in plans for actor in plan.actors} == {1, 2, 4, 8}
    assert len({actor["kinds"] for plan in plans for actor in plan.actors}) > 2


def test_growing_memory_is_noticed_and_a_restart_is_not_mistaken_for_it() -> None:
    flat = [Sample(5.0 * number, 60.0 if number % 100 > 3 else 20.0, 1 + number // 100) for number in range(200)]
    stepped = [sample._replace(mib=sample.mib + 40.0 * (sample.at % 500 > 200)) for sample in flat]
    growing = [sample._replace(mib=sample.mib + sample.at / 20) for sample in flat]
    assert memory.leaks("scheduler", flat) == memory.leaks("learner", stepped) == []
    found = memory.leaks("learner", growing)
    assert [leak.partition(":")[0] for leak in found] == [
        "learner grew from 65 to 83 MiB in life 1",
        "learner grew from 90 to 108 MiB in life 2",
    ]
    assert "3.0 MiB a minute over 435 s; the bound is 1" in found[0]
    assert memory.leaks("scheduler", growing, memory.allowed_mib(100_000)) == []
    assert "at most 110 MiB in 2 lives, +3.00 MiB a minute in the longest of 435 s" in memory.text("learner", growing)
    assert "none long enough for a slope" in memory.text("learner", growing[:10])


def test_an_unknown_fault_is_named() -> None:
    with pytest.raises(ValueError, match="there is no fault 'flood'"):
        make_plan(1, 10.0, names=["flood"])
