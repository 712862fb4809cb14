"""The figures that both benchmarks promise, and the programs they start."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tools.bench import actors as actors_benchmark
from tools.bench import dataplane as dataplane_benchmark
from tools.bench import dqn as dqn_benchmark
from tools.bench import environments as environments_benchmark
from tools.bench import learning as learning_benchmark
from tools.bench import memory as memory_benchmark
from tools.bench import sac as sac_benchmark
from tools.bench import scheduler as scheduler_benchmark
from tools.bench import strangers as strangers_benchmark
from tools.bench import train as train_benchmark
from tools.bench.applications import worlds as worlds_benchmark
from tools.bench.ground.measuring import Findings
from tools.bench.ground.places import BENCH, PEERS
from tools.bench.ground.venvs import torch_requirement

BENCHMARKS = [
    train_benchmark,
    scheduler_benchmark,
    dataplane_benchmark,
    dqn_benchmark,
    sac_benchmark,
    environments_benchmark,
    learning_benchmark,
    memory_benchmark,
    strangers_benchmark,
    actors_benchmark,
    worlds_benchmark,
]
PROMISED = {
    train_benchmark: {
        "fleet_steps_per_second",
        "serial_steps_per_second",
        "sb3_steps_per_second",
        "seconds_to_475",
        "steps_to_475",
        "actor_steps_per_second",
    },
    scheduler_benchmark: {
        "memory_tasks_per_second",
        "sqlite_tasks_per_second",
        "ray_tasks_per_second",
        "dask_tasks_per_second",
        "roundtrip_p50_ms",
        "roundtrip_p99_ms",
        "fanout_1500_seconds",
        "initialize_100_seconds",
        "cost_ratio_1m_over_1k",
        "memory_bytes_per_queued_task",
    },
    dqn_benchmark: {
        "dqn_fleet_steps_per_second",
        "dqn_serial_steps_per_second",
        "sb3_dqn_steps_per_second",
        "dqn_serial_over_sb3",
    },
    sac_benchmark: {"sac_serial_steps_per_second", "sb3_sac_steps_per_second", "sac_serial_over_sb3"},
    learning_benchmark: {
        "dqn_cartpole_best_return",
        "dqn_cartpole_steps_to_mark",
        "dqn_cartpole_worst_best_return",
        "q_frozenlake_final_return",
        "q_taxi_best_return",
        "ppo_acrobot_final_return",
        "vtrace_lag_4_return",
        "gae_lag_8_return",
        "vtrace_lag_8_loss",
    },
    environments_benchmark: {
        "computing_fleet_over_serial",
        "waiting_fleet_over_serial",
        "pictures_fleet_over_serial",
        "images_cpu_over_sb3",
    },
    worlds_benchmark: {
        "placement_v3_steps_per_second",
        "placement_v3_100x50_steps_per_second",
        "ppo_v3_reward",
        "ppo_v3_kubernetes_reward",
        "ppo_v3_over_best_baseline",
        "sb3_v3_reward",
        "small_gap",
        "routing_failing_policy_delivered",
        "tuned_better_of_three",
        "tune_two_over_one",
    },
    memory_benchmark: {"learner_mb_per_hour", "actor_mb_per_hour_low", "scheduler_mb_per_hour_high"},
    actors_benchmark: {
        "core_cost_ratio_10k_over_100",
        "most_streams_on_time",
        "streams_1000_roundtrip_p99_ms",
        "streams_1000_oldest_heartbeat_seconds",
    },
    strangers_benchmark: {
        "ours_alone_p99_ms",
        "ours_paced_over_alone",
        "ours_flood_over_alone",
        "bare_flood_over_alone",
        "ours_elsewhere_over_alone",
        "reset_cpu_over_bare",
    },
    dataplane_benchmark: {
        "upload_mb_per_second",
        "bare_stream_mb_per_second",
        "publish_8_readers_ms",
        "bare_publish_ms",
        "zstd_ratio",
        "bfloat16_ratio",
        "delta_ratio",
    },
}


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_promised_key_is_printed_even_when_nothing_was_measured(benchmark: ModuleType) -> None:
    nothing = Findings()
    keys = [row.key for row in benchmark.rows(nothing)] + list(benchmark.derived(nothing))
    assert len(keys) == len(set(keys))
    assert set(keys) >= PROMISED[benchmark]


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_what_a_plan_starts_exists_and_every_peer_has_pinned_requirements(benchmark: ModuleType, quick: bool) -> None:
    for measurement in benchmark.plan(quick):
        if measurement.peer:
            assert measurement.peer in benchmark.KNOWN_PEERS
            assert Path(measurement.arguments[0]).is_file()
            lines = (PEERS / f"requirements-{measurement.peer}.txt").read_text(encoding="ascii").splitlines()
            assert all("==" in line for line in lines if not line.startswith("#"))
        else:
            assert importlib.util.find_spec(measurement.arguments[1]) is not None


def test_torch_is_found_among_requirements_by_its_own_name_alone() -> None:
    assert torch_requirement("# torch\ntorchvision==1.0\ntorch==2.13.0\nnumpy==2.0\n") == ["torch==2.13.0"]
    assert torch_requirement("numpy==2.0\n") == []


SCRIPTS = sorted(script for folder in (".", "federation", "applications") for script in (BENCH / folder).glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_file_beside_the_benchmarks_is_one(script: Path) -> None:
    """`make bench` runs them all."""
    done = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--quick" in done.stdout
    assert "--peers" in done.stdout


def test_stable_baselines3_counts_with_the_number_of_threads_that_suits_it() -> None:
    findings = Findings(
        results={
            "sb3_own_threads": [{"steps_per_second": 150.0}],
            "sb3_one_thread": [{"steps_per_second": 2000.0}, {"steps_per_second": 2200.0}],
        }
    )
    train_benchmark.take_faster_sb3(findings)
    samples = findings.samples("sb3", "steps_per_second")
    assert samples is not None
    assert samples.median == 2100.0


def test_stable_baselines3_that_could_not_be_measured_says_why() -> None:
    findings = Findings(reasons={"sb3_one_thread": "not asked for", "sb3_own_threads": "not asked for"})
    train_benchmark.take_faster_sb3(findings)
    assert findings.reasons["sb3"] == "not asked for"
