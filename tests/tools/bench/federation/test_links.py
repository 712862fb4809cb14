"""What docs/benchmarks.md says of DiLoCo, on one seed."""

import pytest

from tools.bench.federation.links import ARMS, Arm, Moment, seconds, to_mark

WAYS = {arm.name: arm for arm in ARMS}


def test_a_round_lasts_as_long_as_its_steps_and_its_bytes() -> None:
    arm = Arm("x", 30, 10, {})
    assert seconds(arm, Moment(2, 125_000, 0.9), 1) == pytest.approx(2 * 30 * 1e-3 + 1.0)


@pytest.mark.slow
def test_diloco_needs_a_tenth_of_the_bytes_of_fedavg_at_every_step() -> None:
    every, diloco = (to_mark(WAYS[name], 1, "dirichlet") for name in ("fedavg_every_step", "diloco_30_steps_int8"))
    assert every is not None
    assert diloco is not None
    assert every.bytes >= 10 * diloco.bytes
