"""The image, built and run for real, read-only, without capabilities and without root: a compose fleet trains CartPole.

Where no registry can be reached, PARLMESH_TEST_BASE names an image with Debian 12 (debootstrap and `podman import`
make one) and PARLMESH_TEST_BUILD has further arguments of `podman build`. PARLMESH_TEST_IMAGE names an image that was
built before.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parlmesh.cli.__main__ import app

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(3000)]

ROOT = Path(__file__).parents[3]
COMPOSE = Path(sys.executable).parent / "podman-compose"
CONF = """
[containers]
default_ulimits = ["nofile=10000:10000", "nproc=10000:10000"]
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
"""


def run(*command: object, check: bool = True, cwd: Path | None = None, seconds: float = 900) -> str:
    answer = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=seconds, cwd=cwd)
    assert answer.returncode == 0 or not check, f"{command}\n{answer.stdout[-2000:]}{answer.stderr[-2000:]}"
    return answer.stdout


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    for tool in ("podman", "runc"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed here")
    if not COMPOSE.exists():
        pytest.skip("podman-compose is not installed here")
    with pytest.MonkeyPatch.context() as patch:
        if "CONTAINERS_CONF" not in os.environ:
            file = tmp_path_factory.mktemp("podman") / "containers.conf"
            file.write_text(CONF)
            patch.setenv("CONTAINERS_CONF", str(file))
        given = os.environ.get("PARLMESH_TEST_IMAGE", "")
        if not given:
            base = os.environ.get("PARLMESH_TEST_BASE", "")
            build = ["--build-arg", f"BASE={base}"] if base else []
            build += shlex.split(os.environ.get("PARLMESH_TEST_BUILD", ""))
            command = ["podman", "build", "--isolation=chroot", "--network=host", "-f", ROOT / "deploy/Containerfile"]
            run(*command, *build, "-t", "localhost/parlmesh:test", ROOT, seconds=2400)
        yield given or "localhost/parlmesh:test"


@pytest.fixture
def project(image: str, tmp_path: Path) -> Iterator[Path]:
    settings = [f"image={image}", "step_budget=300000", "name=parlmesh-test"]
    command = ["deploy", "render", "compose", "--out", str(tmp_path), "--certificates"]
    result = CliRunner().invoke(app, command + [part for each in settings for part in ("--set", each)])
    assert result.exit_code == 0, result.output
    folder = tmp_path / "compose"
    for key in (folder / "certificates").glob("*.key"):
        key.chmod(0o644)
    run(COMPOSE, "up", "-d", cwd=folder)
    yield folder
    run(COMPOSE, "down", "-v", check=False, cwd=folder)


def test_a_compose_fleet_trains_without_privileges(project: Path) -> None:
    certificates = project / "certificates"
    credentials = ["--ca", certificates / "ca.crt", "--token-file", certificates / "operator.token"]
    wait = ["train", "wait", "--run", "first", "--learner", "localhost:50052", "--timeout", "600"]
    ended = run(sys.executable, "-m", "parlmesh.cli", *credentials, *wait, cwd=ROOT)
    assert "first is finished" in ended
    for name in ("scheduler", "learner", "actor-0"):
        look = "id -u; grep CapEff /proc/self/status; touch /x 2>&1 || true; command -v gcc pip || true"
        user, capabilities, *rest = run("podman", "exec", f"parlmesh-test_{name}_1", "sh", "-c", look).splitlines()
        assert user == "10001"
        assert int(capabilities.split()[1], 16) == 0
        assert rest == ["touch: cannot touch '/x': Read-only file system"]
