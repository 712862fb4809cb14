import os
from collections.abc import Iterator

import pytest

from tools.bench.ground import machine


def _stat(busy: int, idle: int) -> str:
    return f"cpu  {busy} 0 0 {idle} 0 0 0 0 77 77\ncpu0 1 1 1 1\n"


def test_busy_cores_are_the_share_of_ticks_that_were_not_idle() -> None:
    readings: Iterator[str] = iter([_stat(100, 1000), _stat(125, 1075)])
    found = machine.busy_cores(lambda: next(readings), pause=lambda seconds: None)
    assert found == pytest.approx(0.25 * (os.cpu_count() or 1))


def test_a_childs_usage_is_not_charged_to_others() -> None:
    ticks, cores = os.sysconf("SC_CLK_TCK"), os.cpu_count() or 1
    second = ticks * cores
    readings = iter([_stat(0, 0), _stat(10 * ticks, 10 * second - 10 * ticks)])
    used = iter([5.0, 9.0])
    watch = machine.OthersWatch(lambda: next(readings), own=lambda: next(used))
    assert watch.cores() == pytest.approx(1.0 - 0.4)


def test_waiting_ends_as_soon_as_the_machine_is_quiet() -> None:
    glances = iter([2.0, 1.0, 0.1, 2.0])
    assert machine.wait_until_quiet(1000.0, lambda: next(glances), pause=lambda seconds: None) == 0.1


def test_waiting_no_time_takes_the_machine_as_it_is() -> None:
    assert machine.wait_until_quiet(0.0, lambda: 1.7) == 1.7


def test_facts_leave_out_what_is_not_installed() -> None:
    found = machine.facts(["numpy", "no-such-package"])
    assert "numpy" in found
    assert "no-such-package" not in found
