"""docs/machines.md on two hosts: network namespaces with names of their own, certificates, a restart and a rotation."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parlmesh.cli.__main__ import app
from parlmesh.testing import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")
SERVERS, NODE = "10.213.7.1", "10.213.7.2"
HOSTS = f"127.0.0.1 localhost\n{SERVERS} scheduler.example learner.example\n"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Two namespaces with a cable between them, and a file of names as each machine would have."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need `ip` and root")
    names = (f"pm{os.getpid()}a", f"pm{os.getpid()}b")
    made: list[str] = []
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
            folder = Path("/etc/netns") / name
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(HOSTS)
        ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for name, address in zip(names, (SERVERS, NODE), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                ip("-n", name, "link", "set", device, "up")
        yield names
    finally:
        for name in made:
            ip("netns", "delete", name)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


class Host:
    """One machine: its namespace and its files."""

    def __init__(self, namespace: str, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._namespace, self._stack = namespace, stack
        (folder / "certs").mkdir(parents=True)

    def start(self, service: str) -> "subprocess.Popen[bytes]":
        log = self._stack.enter_context((self.folder / f"{service}.log").open("ab"))
        module = [sys.executable, "-m", service, "--config", f"{service}.yaml"]
        command = ["ip", "netns", "exec", self._namespace, *module]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, cwd=self.folder, env=environment, stderr=log)
        self._stack.callback(process.wait, 20)
        self._stack.callback(process.terminate)
        return process

    def parlmesh(self, *words: str, **environment: str) -> str:
        command = ["ip", "netns", "exec", self._namespace, sys.executable, "-m", "parlmesh.cli", *words]
        whole = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        return subprocess.run(command, cwd=self.folder, env=whole, capture_output=True, text=True, timeout=60).stdout


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def certs(folder: Path, *words: str) -> None:
    result = CliRunner().invoke(app, ["certs", *words, "--folder", str(folder)])
    assert result.exit_code == 0, result.output


def test_a_second_host_joins_from_the_page_alone(hosts: tuple[str, str], tmp_path: Path) -> None:
    trusted = tmp_path / "trusted" / "certs"
    for command in next(block for block in blocks("") if "certs ca" in block).strip().splitlines():
        certs(trusted, *shlex.split(command)[2:])
    with ExitStack() as stack:
        servers = Host(hosts[0], tmp_path / "servers", stack)
        node = Host(hosts[1], tmp_path / "node", stack)

        def copy(host: Host, *names: str) -> None:
            for name in names:
                shutil.copy(trusted / name, host.folder / "certs")

        pairs = [f"{name}.{end}" for name in ("scheduler", "learner") for end in ("key", "crt")]
        copy(servers, "ca.crt", "tokens.yaml", "ada.token", *pairs)
        copy(node, "ca.crt", "node-1.key", "node-1.crt")
        for host, service, text in zip(
            (servers, servers, node), ("scheduler", "learner", "actor"), blocks("yaml"), strict=True
        ):
            (host.folder / f"{service}.yaml").write_text(text)
        scheduler = servers.start("scheduler")
        servers.start("learner")
        node.start("actor")
        told = dict(re.findall(r"(PARLMESH_\w+)=(\S+)", PAGE))

        def status() -> str:
            return servers.parlmesh("status", **told)

        wait_until(lambda: re.search(r"first +(running|finished) +[1-9]", status()), 120, poll_seconds=1.0)
        assert "node-1" in servers.parlmesh("actors", "list", **told)
        # A restart of the scheduler, and certificates that are renewed while the processes run.
        scheduler.terminate()
        scheduler.wait(60)
        certs(trusted, "renew", "scheduler", "node-1", "--days", "5")
        copy(servers, "scheduler.key", "scheduler.crt")
        copy(node, "node-1.key", "node-1.crt")
        servers.start("scheduler")

        def echoed() -> bool:
            return "hello" in servers.parlmesh("tasks", "submit", "echo", "--param", "word=hello", "--wait", **told)

        wait_until(echoed, 120, poll_seconds=1.0)
