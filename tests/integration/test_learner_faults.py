"""What a learner may find when it starts: odd files, other settings, plug-ins that raise. A run ends alone."""

import asyncio
import contextlib
import json
import os
import re
import resource
import shutil
from pathlib import Path

import pytest

from learner.build import build_run, build_runs
from learner.config import LearnerConfig, TrainingConfig
from learner.runs.progress import RunState
from learner.serve import serve
from parlmesh.config import to_yaml
from parlmesh.durable_files import remove
from parlmesh.errors import ConfigError, FailedPrecondition, Unavailable
from parlmesh.rpc import open_channel
from parlmesh.testing import Process, wait_until_async
from parlmesh.upload_files import folder_of

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("without_pictures")

WAIT = 60.0
SMALL = {"num_envs": 4, "trajectory_steps": 8, "hidden": [8], "evaluation_episodes": 2, "goal_return": None}
ENDLESS = {**SMALL, "step_budget": 10**9, "checkpoint_interval_versions": 2}
PLUGIN = """
from pathlib import Path
from parlmesh.plugins import Plugin

def algorithm(policy, environment, settings, rng):
    raise ValueError("this algorithm has a defect")

plugin = Plugin(algorithms={"broken": algorithm})
"""


def serial(folder, **changes):
    training = TrainingConfig.model_validate({**ENDLESS, **changes})
    return LearnerConfig(mode="serial", run_dir=folder, training=training)


@contextlib.asynccontextmanager
async def learner(folder, training=ENDLESS, **settings):
    config = LearnerConfig(mode="serial", run_dir=folder, training=training, **settings)
    async with open_channel("127.0.0.1:1") as scheduler:
        runs, stop = build_runs(config, scheduler), asyncio.Event()
        runs.open()
        keeping = asyncio.ensure_future(runs.keep(stop))
        try:
            yield runs
            stop.set()
            await asyncio.wait_for(keeping, WAIT)
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping


async def trains(runs, run_id="run", more=100):
    entry = runs.get(run_id)
    before = entry.standing.get("steps", 0)
    await wait_until_async(lambda: entry.standing.get("steps", 0) > before + more, WAIT)


@contextlib.contextmanager
def files_no_longer_than(size):
    """A disk that is full: what does not fit is written short, then refused (EFBIG)."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        release_files()


def release_files():
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    file = tmp_path_factory.mktemp("plugins") / "broken_plugin.py"
    file.write_text(PLUGIN)
    return (f"{file}:plugin",)


async def test_a_plugin_that_raises_fails_its_run_alone_and_later_starts_are_fine(tmp_path, plugin):
    async with learner(tmp_path / "run", plugins=plugin) as runs:
        await runs.create("broken", {**SMALL, "algorithm": "broken"})
        entry = await runs.start("broken")
        assert entry.state is RunState.FAILED
        assert re.fullmatch(r"ValueError: this algorithm has a defect \(.*/broken_plugin\.py:\d+\)", entry.reason)
        await trains(runs)
    async with learner(tmp_path / "run", plugins=plugin) as runs:
        assert runs.get("broken").state is RunState.FAILED
        await trains(runs)


async def test_so_does_one_of_the_configured_run(tmp_path, plugin):
    broken = {**SMALL, "algorithm": "broken"}
    for _ in range(2):
        async with learner(tmp_path / "run", training=broken, plugins=plugin) as runs:
            entry = runs.get("run")
            assert entry.state is RunState.FAILED
            assert re.fullmatch(r"ValueError: this algorithm has a defect \(.*/broken_plugin\.py:\d+\)", entry.reason)
            if len(runs.newest_first()) == 1:
                await runs.create("other", ENDLESS)
                await runs.start("other")
            await trains(runs, "other")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["state"] == "failed"


async def test_a_run_that_raises_while_it_trains_ends_alone(tmp_path):
    async with learner(tmp_path / "run") as runs:
        await runs.create("other", ENDLESS)
        other = await runs.start("other")
        await trains(runs, "other")

        live = runs.get("run").live
        live.run.on_end = None  # raises in the middle of its end
        live.run.stop("enough")
        await wait_until_async(lambda: runs.get("run").state is RunState.FAILED, WAIT)
        await trains(runs, "other")
        assert other.state is RunState.RUNNING


@pytest.mark.parametrize(
    "changes",
    [{"hidden": [16]}, {"environment": {"id": "Acrobot-v1"}}, {"algorithm": "dqn"}],
    ids=["hidden", "environment", "algorithm"],
)
async def test_a_checkpoint_of_another_configuration_is_refused_in_one_sentence(tmp_path, changes):
    async with learner(tmp_path) as runs:
        await trains(runs)
    with pytest.raises(ConfigError, match=r"checkpoint .*v\d+ is of another configuration .*: choose another run_dir"):
        build_run(serial(tmp_path, **changes))


async def test_what_differs_from_the_settings_of_a_checkpoint_is_named(tmp_path):
    async with learner(tmp_path) as runs:
        await trains(runs)
    before = serial(tmp_path, hidden=[8])
    (tmp_path / "learner.effective.yaml").write_text(to_yaml(before))
    with pytest.raises(ConfigError, match=r"another configuration \(training\.hidden was \[8\], is \[16\]\)"):
        build_run(serial(tmp_path, hidden=[16]))


@pytest.mark.parametrize("content", ["[]", "null", '{"version": 1}', '{"version": 1, "sha256": "", "counters": 7}'])
async def test_a_checkpoint_with_odd_words_is_passed_over(tmp_path, content):
    async with learner(tmp_path) as runs:
        await trains(runs)
    newest = max((tmp_path / "checkpoints").iterdir())
    (newest / "checkpoint.json").write_text(content)
    async with learner(tmp_path) as runs:
        await trains(runs)


async def test_what_crashes_left_behind_is_cleaned_up_and_stops_no_start(tmp_path):
    left = tmp_path / "run" / "checkpoints"
    left.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "theirs").write_text("theirs")
    for version in range(1, 60):
        (left / f".partial-v{version:08d}").symlink_to(tmp_path / "elsewhere")
    (left / ".partial-v00000000").mkdir()
    (left / ".partial-v00000000" / "state.safetensors").write_text("half")
    async with learner(tmp_path / "run") as runs:
        assert not list(left.glob(".partial-*"))
        await trains(runs)
    assert (tmp_path / "elsewhere" / "theirs").read_text() == "theirs"


async def test_two_learners_never_share_a_folder(tmp_path):
    async with learner(tmp_path / "run") as runs:
        with pytest.raises(FailedPrecondition, match="in use by another learner"):
            async with learner(tmp_path / "run"):
                pass
        with pytest.raises(FailedPrecondition, match="in use by another learner"):
            async with learner(tmp_path / "other", runs_dir=tmp_path / "run"):
                pass
        await trains(runs)
    async with learner(tmp_path / "run") as runs:
        await trains(runs)


async def test_a_learner_of_federations_shares_its_folder_with_nobody(tmp_path):
    config = LearnerConfig.model_validate(
        {"mode": "federation", "run_dir": tmp_path / "run", "listen": {"port": 0}, "metrics": {"port": None}}
    )
    stop = asyncio.Event()
    stop.set()
    async with learner(tmp_path / "run"):
        with pytest.raises(FailedPrecondition, match="in use by another learner"):
            await serve(config, stop)
    await serve(config, stop)
    await serve(config, stop)


async def test_a_learner_that_starts_removes_the_uploads_that_another_one_left_when_it_was_killed(tmp_path):
    left = folder_of(tmp_path / "killed")
    assert left is not None, "this machine has no shared memory"
    left.mkdir(mode=0o700)
    (left / "file").write_bytes(b"x")
    config = LearnerConfig.model_validate(
        {"mode": "federation", "run_dir": tmp_path / "run", "listen": {"port": 0}, "metrics": {"port": None}}
    )
    stop = asyncio.Event()
    stop.set()
    await serve(config, stop)
    assert not left.exists()


async def test_a_file_that_cannot_be_written_holds_a_run_up_until_it_can(tmp_path):
    async with learner(tmp_path) as runs:
        await trains(runs)
        entry = runs.get("run")
        saved = tmp_path / "checkpoints"
        put_in_the_way(tmp_path, "checkpoints")
        await wait_until_async(lambda: entry.obstacle, WAIT)
        assert f"cannot write {saved}" in entry.obstacle
        assert entry.obstacles == ("disk",)
        assert entry.state is RunState.RUNNING
        steps = entry.standing["steps"]
        await asyncio.sleep(0.3)
        assert entry.standing["steps"] == steps, "it waits"
        saved.unlink()
        (tmp_path / "aside").rename(saved)
        await trains(runs)
        assert (entry.obstacle, entry.obstacles) == ("", ())


def put_in_the_way(folder, name):
    (folder / "file").write_text("in the way")
    (folder / name).rename(folder / "aside")
    # The learner may make the folder anew in between.
    for _ in range(100):
        try:
            (folder / "file").rename(folder / name)
            return
        except IsADirectoryError:
            shutil.rmtree(folder / name, ignore_errors=True)
    raise AssertionError(f"{name} could not be put in the way")


async def test_a_learner_that_is_stopped_while_its_disk_refuses_leaves_the_run_to_its_last_checkpoint(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("learner.files.disk_retry._LEAVING_SECONDS", 0.2)
    async with learner(tmp_path) as runs:
        await trains(runs)
        entry = runs.get("run")
        put_in_the_way(tmp_path, "checkpoints")
        await wait_until_async(lambda: entry.obstacle, WAIT)
        steps = entry.standing["steps"]
    assert json.loads((tmp_path / "run.json").read_text())["state"] == "running"
    (tmp_path / "checkpoints").unlink()
    (tmp_path / "aside").rename(tmp_path / "checkpoints")
    async with learner(tmp_path) as runs:
        assert 0 < runs.get("run").standing["steps"] <= steps
        await trains(runs)


async def test_a_stop_that_the_disk_refuses_is_carried_out_when_it_can_be(tmp_path):
    async with learner(tmp_path) as runs:
        await trains(runs)
        entry = runs.get("run")
        put_in_the_way(tmp_path, "checkpoints")
        await wait_until_async(lambda: entry.obstacle, WAIT)
        await runs.stop("run")
        await asyncio.sleep(0.2)
        assert entry.state is RunState.RUNNING, "an end is on disk before it is said"
        (tmp_path / "checkpoints").unlink()
        (tmp_path / "aside").rename(tmp_path / "checkpoints")
        await wait_until_async(lambda: entry.state is RunState.STOPPED, WAIT)
        assert entry.reason == "stopped on request"


async def test_a_run_whose_folder_cannot_be_written_is_made_ready_when_it_can_be(tmp_path, monkeypatch):
    monkeypatch.setattr("learner.runs.run_driver._DISK_SECONDS", 0.05)
    async with learner(tmp_path / "run") as runs:
        await runs.create("other", ENDLESS)
        folder = tmp_path / "run" / "runs" / "other"
        (folder / "tensorboard").write_text("in the way")
        entry = await runs.start("other")
        assert entry.state is RunState.RUNNING
        assert "tensorboard" in entry.obstacle
        await trains(runs, "run")
        (folder / "tensorboard").unlink()
        await trains(runs, "other")
        assert entry.obstacle == ""


@pytest.mark.parametrize("name", ["tensorboard", "metrics.jsonl", "versions.json"])
async def test_a_learner_whose_configured_run_the_disk_holds_up_serves_its_other_runs(tmp_path, monkeypatch, name):
    monkeypatch.setattr("learner.runs.run_driver._DISK_SECONDS", 0.05)
    async with learner(tmp_path / "run") as runs:
        await trains(runs)
        await runs.create("other", ENDLESS)
        await runs.start("other")
        await trains(runs, "other")
    blocked, aside = tmp_path / "run" / name, tmp_path / "aside"
    blocked.rename(aside)
    if name == "tensorboard":
        blocked.write_text("in the way")
    else:
        blocked.mkdir()
    files = len(os.listdir("/proc/self/fd"))
    async with learner(tmp_path / "run") as runs:
        entry = runs.get("run")
        await wait_until_async(lambda: str(blocked) in entry.obstacle, WAIT)
        assert (entry.state, entry.obstacles) == (RunState.RUNNING, ("disk",))
        await trains(runs, "other")
        await asyncio.sleep(0.5)
        assert len(os.listdir("/proc/self/fd")) < files + 15, "a try that fails leaves nothing open"
        remove(blocked)
        aside.rename(blocked)
        await trains(runs)
        assert entry.obstacle == ""


# TensorBoard's own thread ends with the error, and is replaced.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_learner_starts_on_a_full_disk_and_trains_when_there_is_room(tmp_path, monkeypatch):
    monkeypatch.setattr("learner.runs.run_driver._DISK_SECONDS", 0.05)
    async with learner(tmp_path / "run") as runs:
        await trains(runs)
        steps = runs.get("run").standing["steps"]
    with files_no_longer_than(10):
        async with learner(tmp_path / "run") as runs:
            entry = runs.get("run")
            await wait_until_async(lambda: entry.obstacle, WAIT)
            assert entry.state is RunState.RUNNING
            release_files()
            await wait_until_async(lambda: entry.standing.get("steps", 0) > steps, WAIT)
            assert entry.obstacle == ""


def test_a_folder_that_can_never_be_made_ends_the_start_with_one_line():
    settings = ("mode=serial", "metrics.port=null", "listen.port=0", "run_dir=/dev/full/run")
    with Process("learner", *(part for each in settings for part in ("--set", each)), cwd=ROOT) as process:
        process.assert_exits(1)
        assert process.lines[-1].strip() == "error: /dev/full/run: Not a directory"
        assert not process.events("service_failed")


async def test_a_run_that_the_disk_does_not_give_out_is_recalled_when_it_does(tmp_path, monkeypatch):
    monkeypatch.setattr("learner.runs.runs._RECALL_SECONDS", 0.05)
    async with learner(tmp_path / "run") as runs:
        await runs.create("other", ENDLESS)
        await runs.start("other")
        await trains(runs, "other")
    record = tmp_path / "run" / "runs" / "other" / "run.json"
    record.rename(tmp_path / "aside")
    record.mkdir()
    async with learner(tmp_path / "run") as runs:
        await trains(runs)
        for refused in (lambda: runs.start("other"), lambda: runs.create("other", ENDLESS)):
            with pytest.raises(Unavailable, match="run 'other' cannot be read at present"):
                await refused()
        record.rmdir()
        (tmp_path / "aside").rename(record)
        await wait_until_async(lambda: not runs._unread, WAIT)
        await trains(runs, "other")


@pytest.mark.parametrize("damage", ["gone", "emptied", "damaged"])
async def test_a_run_whose_checkpoints_are_gone_waits_for_them_and_never_begins_anew_in_silence(
    tmp_path, monkeypatch, damage
):
    monkeypatch.setattr("learner.runs.run_driver._DISK_SECONDS", 0.05)
    async with learner(tmp_path / "run") as runs:
        await trains(runs)
    saved, aside = tmp_path / "run" / "checkpoints", tmp_path / "aside"
    newest = int(max(saved.iterdir()).name[1:])
    steps = json.loads((max(saved.iterdir()) / "checkpoint.json").read_text())["counters"]["steps"]
    shutil.copytree(saved, aside)
    if damage == "damaged":
        for each in saved.iterdir():
            (each / "checkpoint.json").write_text("[]")
    else:
        shutil.rmtree(saved)
        if damage == "emptied":
            saved.mkdir()
    async with learner(tmp_path / "run") as runs:
        entry = runs.get("run")
        said = f"the checkpoints in {saved} are missing, and there was one of version {newest}: put them back"
        await wait_until_async(lambda: said in entry.obstacle, WAIT)
        assert (entry.state, entry.live) == (RunState.RUNNING, None)
        remove(saved)
        aside.rename(saved)
        await wait_until_async(lambda: entry.standing.get("steps", 0) > steps, WAIT)
        assert entry.obstacle == ""
    # Whoever wants it so says it.
    shutil.rmtree(saved)
    (tmp_path / "run" / "checkpoints.witness").unlink()
    async with learner(tmp_path / "run") as runs:
        await trains(runs)


async def test_a_newest_checkpoint_that_is_gone_is_told(tmp_path, caplog):
    async with learner(tmp_path) as runs:
        await trains(runs, more=500)
    older, newest = sorted((tmp_path / "checkpoints").iterdir())[-2:]
    shutil.rmtree(newest)
    found = build_run(serial(tmp_path)).found
    assert found is not None
    assert found.version == int(older.name[1:])
    assert "checkpoint_gone" in caplog.text


async def test_a_change_that_cannot_be_written_down_changes_nothing(tmp_path):
    async with learner(tmp_path) as runs:
        await trains(runs)
        record = tmp_path / "run.json"
        record.rename(tmp_path / "aside")
        record.mkdir()
        with pytest.raises(Unavailable, match=r"cannot write .*run.json") as raised:
            await runs.pause("run")
        assert raised.value.reason == "DISK"
        await trains(runs)
        record.rmdir()
        (tmp_path / "aside").rename(record)
        assert (await runs.pause("run")).state is RunState.PAUSED
        await runs.resume("run")
        await trains(runs)
