"""A real Prometheus scrapes a real fleet: each expression has a series, each alert fires on its symptom."""

import contextlib
import http.server
import json
import re
import resource
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from parlmesh.deployment.alerts import ALERTS, RECORDED
from parlmesh.deployment.grafana import expressions
from parlmesh.deployment.rendered_files import write
from parlmesh.deployment.settings import DeploySettings
from parlmesh.security.identity import role_named
from parlmesh.security.tokens import write_token
from parlmesh.testing import Process, free_port, wait_until
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from tests.e2e.conftest import Fleet

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

OLD_VERSION = b'parlmesh_build_info{service="actor",version="0.0.1",python="3.11"} 1\n'
# Minutes of the rules as seconds of a test.
SHORTER = ((r"\[(5|15)m\]", "[20s]"), (r"> 600\b", "> 4"), (r"^(\s+for:) .*$", r"\1 2s"))


class Prometheus:
    """A Prometheus that scrapes every second, with the rendered rules sped up."""

    def __init__(self, folder: Path, scheduler: int, learner: int) -> None:
        write("prometheus", DeploySettings(), folder, certificates=False, force=False)
        self.folder = folder / "prometheus"
        for file in (self.folder / "rules").iterdir():
            text = file.read_text()
            for pattern, replacement in SHORTER:
                text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
            file.write_text(text)
        config = (self.folder / "prometheus.yml").read_text().replace("15s", "1s")
        config = config.replace("scheduler.example:9101", f"127.0.0.1:{scheduler}")
        config = config.replace("learner.example:9102", f"127.0.0.1:{learner}")
        whole = yaml.safe_load(config)
        (self.folder / "extra").mkdir()
        files = {"files": ["extra/*.json"], "refresh_interval": "1s"}
        whole["scrape_configs"].append({"job_name": "extra", "file_sd_configs": [files]})
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(whole))
        self._port = free_port()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        program = shutil.which("prometheus")
        assert program is not None
        listen = f"--web.listen-address=127.0.0.1:{self._port}"
        paths = [f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/data"]
        with (self.folder / "prometheus.log").open("w") as log:
            process = subprocess.Popen([program, *paths, listen], stdout=log, stderr=log)
            try:
                wait_until(self._ready, 60, poll_seconds=0.2)
                yield
            finally:
                process.terminate()
                process.wait(60)

    def get(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def _ready(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=5).getcode() == 200)
        return False

    def series(self, expression: str) -> list[Any]:
        return list(self.get("query", query=expression)["result"])

    def firing(self) -> set[str]:
        return {each["labels"]["alertname"] for each in self.get("alerts")["alerts"] if each["state"] == "firing"}

    def targets(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for each in self.get("targets", state="active")["activeTargets"]:
            if each["health"] == "up":
                found[each["labels"]["service"]] = found.get(each["labels"]["service"], 0) + 1
        return found


class Client:
    """Submits with a valid token or an unknown one."""

    def __init__(self, address: str, token: str) -> None:
        self._stub = SchedulerServiceStub(grpc.insecure_channel(address))
        self._credential = (("authorization", f"Bearer {token}"),)

    def submit(self, kind: str, count: int, **parameters: Any) -> None:
        spec = task_pb2.TaskSpec(kind=kind, max_attempts=1)
        spec.payload.parameters.update(parameters)
        request = pb.SubmitTasksRequest(tasks=[spec] * count)
        self._stub.SubmitTasks(request, timeout=10, metadata=self._credential)

    def quarantine(self, node: str) -> None:
        command = pb.ACTOR_COMMAND_QUARANTINE
        request = pb.UpdateActorsRequest(node_ids=[node], command=command, reason="tried")
        self._stub.UpdateActors(request, timeout=10, metadata=self._credential)

    def knock(self) -> grpc.StatusCode:
        wrong = (("authorization", "Bearer nobody"),)
        try:
            self._stub.ListActors(pb.ListActorsRequest(), timeout=10, metadata=wrong)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def token(folder: Path, name: str, role: str) -> Path:
    return write_token(folder, name, role_named(role), force=False)[0]


class Scene:
    """The fleet, its Prometheus and a user of both."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self._fleet, self._folder = fleet, folder
        self.operator = token(folder, "operator", "operator")
        self._nodes = {f"node-{index}": token(folder, f"node-{index}", "actor") for index in range(2)}
        self.ports = [free_port() for _ in range(4)]
        tokens = {"security.tokens": folder / "tokens.yaml"}
        self.scheduler = fleet.scheduler(**{"metrics.port": self.ports[0], "queue.max_tasks": 500, **tokens})
        training = {"training.step_budget": 1_000_000_000, "training.goal_return": "null"}
        called = {"security.token_file": self.operator, **tokens}
        self.learner = fleet.learner(**{"metrics.port": self.ports[1], **training, **called})
        self.actors = [self.actor(index) for index in range(2)]
        self.client = Client(fleet.scheduler_address, self.operator.read_text().strip())

    def actor(self, index: int) -> Process:
        name = f"node-{index}"
        mine = {"node_id": name, "actor_id": f"{name}-actor", "security.token_file": self._nodes[name]}
        return self._fleet.actor(index, slots=8, **{"metrics.port": self.ports[2 + index], **mine})


@pytest.mark.timeout(600)
def test_every_expression_has_a_series_and_every_alert_fires_on_its_symptom(fleet: Fleet, tmp_path: Path) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed here")
    scene = Scene(fleet, tmp_path)
    client = scene.client
    prometheus = Prometheus(tmp_path, scene.ports[0], scene.ports[1])
    seen: set[str] = set()

    def fires(*names: str, seconds: float = 90) -> None:
        def found() -> bool:
            seen.update(prometheus.firing())
            return set(names) <= seen

        wait_until(found, seconds, poll_seconds=0.5)

    with prometheus.running():
        wait_until(lambda: prometheus.targets() == {"scheduler": 1, "learner": 1, "actor": 2}, 60, poll_seconds=0.5)
        wanted = [*RECORDED, *(each.replace("$__rate_interval", "20s") for each in expressions())]
        wanted = [each.replace("$fleet", ".*") for each in wanted]

        def missing() -> list[str]:
            client.submit("echo", 20)
            client.submit("sleep", 2, seconds=0.05)
            return [each for each in wanted if not prometheus.series(each)]

        deadline = time.monotonic() + 120
        while (absent := missing()) and time.monotonic() < deadline:
            time.sleep(1.0)
        assert absent == []
        groups = prometheus.get("rules")["groups"]
        assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
        assert prometheus.firing() == set(), "a healthy fleet has no alert"

        page = _page(OLD_VERSION)
        listed = [{"targets": [f"127.0.0.1:{page}"], "labels": {"fleet": "parlmesh", "service": "actor"}}]
        (prometheus.folder / "extra" / "old.json").write_text(json.dumps(listed))
        fires("ParlmeshMixedVersions")

        with pytest.raises(grpc.RpcError, match="queue"):
            client.submit("noop", 2000)
        fires("ParlmeshQueueFull")

        for _ in range(20):
            client.submit("fail", 100)
            if "ParlmeshTasksFail" in prometheus.firing():
                break
            time.sleep(0.5)
        fires("ParlmeshTasksFail")

        refused = [client.knock() for _ in range(200)]
        assert set(refused) == {grpc.StatusCode.UNAUTHENTICATED}
        fires("ParlmeshCallsRefused")

        # More work than slots, and a lease in every slot.
        client.submit("sleep", 100, seconds=60)
        fires("ParlmeshTasksWait")

        client.quarantine("node-1")
        fires("ParlmeshNodesQuarantined")

        scene.actors[0].kill()
        fires("ParlmeshLeasesLost", "ParlmeshNoActors")
        fires("ParlmeshTrainingStalled")

        pid = scene.scheduler.pid
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        with contextlib.suppress(grpc.RpcError):
            client.submit("noop", 1)
        fires("ParlmeshJournalFailing")
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

        scene.learner.kill()
        fires("ParlmeshServerDown")
    assert seen == {alert.name for alert in ALERTS}


def _page(body: bytes) -> int:
    """The metrics page of a process of another version."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port
