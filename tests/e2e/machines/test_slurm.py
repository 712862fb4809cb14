"""A Slurm of one node on this machine: `sbatch` starts a fleet that trains and ends with its run."""

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parlmesh.deployment.rendered_files import write
from parlmesh.deployment.settings import DeploySettings
from parlmesh.testing import free_port, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
CONF = """
ClusterName=parlmesh
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmctldPort={controller}
SlurmdPort={daemon}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES OverSubscribe=FORCE:4 State=UP
"""


def started(stack: contextlib.ExitStack, *command: object, log: Path) -> None:
    stream = stack.enter_context(log.open("w"))
    process = subprocess.Popen([str(word) for word in command], stdout=stream, stderr=stream)

    def end() -> None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()

    stack.callback(end)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for tool in ("slurmctld", "slurmd", "sbatch", "munged"):
        if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            pytest.skip(f"{tool} is not installed here")
    if os.geteuid() != 0:
        pytest.skip("a Slurm of one's own is started by root")
    folder = tmp_path / "slurm"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    file = folder / "slurm.conf"
    ports = {"controller": free_port(), "daemon": free_port()}
    host = socket.gethostname().partition(".")[0]
    file.write_text(CONF.format(host=host, user=getpass.getuser(), folder=folder, cores=os.cpu_count(), **ports))
    monkeypatch.setenv("SLURM_CONF", str(file))
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
    with contextlib.ExitStack() as stack:
        munge = [
            "--foreground",
            f"--key-file={key}",
            f"--socket={folder}/munge.socket",
            f"--log-file={folder}/munge.log",
        ]
        files = [f"--pid-file={folder}/munge.pid", f"--seed-file={folder}/munge.seed", "--force"]
        started(stack, "munged", *munge, *files, log=folder / "munged.out")
        wait_until((folder / "munge.socket").exists, 60)
        started(stack, "slurmctld", "-D", "-f", file, log=folder / "slurmctld.out")
        started(stack, "slurmd", "-D", "-N", host, "-f", file, log=folder / "slurmd.out")
        wait_until(lambda: "idle" in _ask("sinfo", "-h", "-o", "%T"), 60, poll_seconds=0.5)
        yield folder


def _ask(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout


def test_a_job_trains_and_ends_with_its_run(slurm: Path, tmp_path: Path) -> None:
    settings = DeploySettings(actors=2, step_budget=100_000)
    write("slurm", settings, tmp_path, certificates=False, force=False)
    environment = {**os.environ, "PARLMESH_BIN": str(Path(sys.executable).parent), "PARLMESH_HOST": "localhost"}
    command = ["sbatch", "--parsable", "--ntasks=2", "--overcommit", str(tmp_path / "slurm/fleet.sbatch")]
    submitted = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()
    wait_until(lambda: job not in _ask("squeue", "-h", "-o", "%i"), 600, poll_seconds=1.0)
    output = (tmp_path / f"slurm-{job}.out").read_text()
    assert "first is finished" in output, output
    assert (tmp_path / f"parlmesh-{job}" / "first").is_dir()
    assert "JobState=COMPLETED" in _ask("scontrol", "show", "job", job)
