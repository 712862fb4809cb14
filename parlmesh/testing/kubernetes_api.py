"""A small Kubernetes API server over real HTTP: the part that the placement adapter uses, with faults.

It keeps nodes, deployments and pods, schedules pods to the preferred node, and answers as kube-apiserver does: pages,
watches, 409 for a stale version, 410 for an expired one, dryRun without effect, 429 for an eviction that a budget
forbids. It also answers Prometheus' instant queries. Every request that changed something is in `writes`.
"""

import copy
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_DEPLOYMENT = re.compile(r"/apis/apps/v1/namespaces/([^/]+)/deployments/([^/]+)(/scale)?")
_POD = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)(/eviction)?")
_PODS = re.compile(r"/api/v1/namespaces/([^/]+)/pods")
_MERGES = ("application/merge-patch+json", "application/strategic-merge-patch+json")
_LONGEST_WATCH_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A wrong answer for the next `times` matching requests."""

    method: str
    path: str
    status: int
    times: int = 1
    body: bytes | None = None
    """Sent as it is, for a lying server; None = a Status."""


@dataclass
class KubernetesState:
    """The server's state; change it under `lock`."""

    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    deployments: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    pods: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    """Prometheus' answers: values by deployment, by query."""
    version: int = 100
    oldest: int = 0
    """Watches from before this version have expired."""
    writes: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    """Method, path and body of every request that changed something."""
    requests: list[tuple[str, str]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    events: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    protected: set[str] = field(default_factory=set)
    """Pods whose disruption budget forbids an eviction."""
    stuck: bool = False
    """New pods never become ready."""
    lock: threading.Condition = field(default_factory=threading.Condition)

    def add_node(self, name: str, *, ready: bool = True) -> None:
        """Adds a node without pods."""
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        meta = {"name": name, "resourceVersion": self.next_version(), "labels": {"kubernetes.io/hostname": name}}
        self.nodes[name] = {"metadata": meta, "spec": {}, "status": {"conditions": conditions}}

    def add_deployment(self, namespace: str, name: str, on: list[str]) -> None:
        """Adds a deployment with a ready pod on each of these nodes."""
        labels = {"app": name}
        spec = {
            "replicas": len(on),
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "main", "image": "example.org/app"}]},
            },
        }
        meta = {"name": name, "namespace": namespace, "resourceVersion": self.next_version(), "uid": f"uid-{name}"}
        self.deployments[namespace, name] = {"metadata": meta, "spec": spec, "status": {}}
        for node in on:
            self.start_pod(namespace, name, node)

    def next_version(self) -> str:
        """A new version; every change has its own."""
        self.version += 1
        return str(self.version)

    def start_pod(self, namespace: str, deployment: str, node: str) -> None:
        """Starts a pod of a deployment on a node."""
        version = self.next_version()
        name = f"{deployment}-{version}"
        ready = "False" if self.stuck else "True"
        pod = {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": f"uid-{name}",
                "resourceVersion": version,
                "labels": {"app": deployment},
            },
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "example.org/app"}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
        }
        self.pods[namespace, name] = pod
        self._tell("ADDED", pod)

    def stop_pod(self, key: tuple[str, str]) -> None:
        """Removes a pod."""
        pod = self.pods.pop(key)
        pod["metadata"]["resourceVersion"] = self.next_version()
        self._tell("DELETED", pod)

    def reconcile(self, namespace: str, name: str, *, roll: bool = False) -> None:
        """Adjusts the number of pods; with `roll` it replaces all of them on their preferred nodes."""
        deployment = self.deployments[namespace, name]
        mine = [key for key, pod in self.pods.items() if pod["metadata"]["labels"].get("app") == name]
        if roll:
            for key in mine:
                self.stop_pod(key)
            mine = []
        cost = "controller.kubernetes.io/pod-deletion-cost"
        mine.sort(key=lambda key: int(self.pods[key]["metadata"].get("annotations", {}).get(cost, "0")), reverse=True)
        while len(mine) > deployment["spec"]["replicas"]:
            self.stop_pod(mine.pop())
        for _ in range(deployment["spec"]["replicas"] - len(mine)):
            self.start_pod(namespace, name, self._scheduled(name, deployment))

    def _scheduled(self, name: str, deployment: dict[str, Any]) -> str:
        """The preferred node that is furthest below its share of the weights, else the one with the fewest pods."""
        affinity = deployment["spec"]["template"]["spec"].get("affinity", {}).get("nodeAffinity", {})
        terms = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])
        weights = {term["preference"]["matchExpressions"][0]["values"][0]: term["weight"] for term in terms}
        count = {node: 0 for node in self.nodes}
        for pod in self.pods.values():
            if pod["metadata"]["labels"].get("app") == name:
                count[pod["spec"]["nodeName"]] += 1
        return min(count, key=lambda node: (count[node] + 1) / weights[node] if node in weights else 1e9 + count[node])

    def _tell(self, kind: str, thing: dict[str, Any]) -> None:
        with self.lock:
            self.events.append((self.version, kind, copy.deepcopy(thing)))
            self.lock.notify_all()


@contextmanager
def kubernetes_api(state: KubernetesState) -> Iterator[str]:
    """Serves a state on a free loopback port; yields the address."""
    handler = type("Handler", (_Handler,), {"state": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5.0)


class _Refused(Exception):
    def __init__(self, status: int, reason: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.headers = status, reason, headers or {}


class _Handler(BaseHTTPRequestHandler):
    state: KubernetesState
    # Otherwise a body waits 40 ms for the acknowledgement of the headers.
    disable_nagle_algorithm = True
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""

    def do_GET(self) -> None:
        """Reads, lists and watches."""
        self._served(self._read)

    def do_PATCH(self) -> None:
        """Changes."""
        self._served(self._patched)

    def do_POST(self) -> None:
        """Evictions."""
        self._served(self._evicted)

    def _served(self, answer: Callable[[str, dict[str, str]], Any]) -> None:
        address = urllib.parse.urlsplit(self.path)
        query = {name: values[-1] for name, values in urllib.parse.parse_qs(address.query).items()}
        state = self.state
        try:
            with state.lock:
                state.requests.append((self.command, address.path))
                self._fault(address.path)
                found = answer(address.path, query)
            if found is not None:
                self._send(200, json.dumps(found).encode())
        except _Refused as refused:
            status = {"kind": "Status", "status": "Failure", "reason": refused.reason, "code": refused.status}
            self._send(refused.status, json.dumps(status).encode(), refused.headers)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def _fault(self, path: str) -> None:
        for index, fault in enumerate(self.state.faults):
            if fault.method == self.command and re.search(fault.path, path):
                self.state.faults.pop(index)
                if fault.times > 1:
                    self.state.faults.append(Fault(fault.method, fault.path, fault.status, fault.times - 1, fault.body))
                if fault.status == 0:
                    self.close_connection = True
                    self.connection.close()
                    raise BrokenPipeError
                if fault.body is not None:
                    self._send(fault.status, fault.body)
                    raise BrokenPipeError
                raise _Refused(fault.status, "Injected", {"Retry-After": "7"} if fault.status == 429 else {})

    def _read(self, path: str, query: dict[str, str]) -> Any:
        state = self.state
        if path == "/api/v1/nodes":
            return self._page("NodeList", list(state.nodes.values()), query)
        if found := _PODS.fullmatch(path):
            if query.get("watch", "").lower() in ("1", "true"):
                self._watch(int(query["resourceVersion"]), float(query.get("timeoutSeconds", 30)))
                return None
            pods = [pod for (namespace, _), pod in state.pods.items() if namespace == found[1]]
            return self._page("PodList", pods, query)
        if found := _DEPLOYMENT.fullmatch(path):
            return self._deployment(found[1], found[2])
        if path == "/apis/metrics.k8s.io/v1beta1/nodes":
            usage = {"cpu": "250m", "memory": "512Mi"}
            return {"items": [{"metadata": {"name": name}, "usage": usage} for name in state.nodes]}
        if path == "/api/v1/query":
            values = state.metrics.get(query["query"], {})
            result = [{"metric": {"deployment": name}, "value": [0, str(value)]} for name, value in values.items()]
            return {"status": "success", "data": {"resultType": "vector", "result": result}}
        raise _Refused(404, "NotFound")

    def _page(self, kind: str, items: list[dict[str, Any]], query: dict[str, str]) -> Any:
        """One page; the token contains the version of the first page."""
        first, version = 0, self.state.version
        if query.get("continue"):
            version, first = (int(part) for part in query["continue"].split("-"))
            if version < self.state.oldest:
                raise _Refused(410, "Expired")
        limit = int(query.get("limit") or 0) or len(items)
        more = f"{version}-{first + limit}" if first + limit < len(items) else ""
        meta = {"resourceVersion": str(version), "continue": more}
        return {"kind": kind, "apiVersion": "v1", "metadata": meta, "items": items[first : first + limit]}

    def _watch(self, since: int, seconds: float) -> None:
        state = self.state
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        deadline = time.monotonic() + min(seconds, _LONGEST_WATCH_SECONDS)
        sent = since
        while True:
            if sent < state.oldest:
                gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
                self._event("ERROR", gone)
                break
            for version, kind, thing in [event for event in state.events if event[0] > sent]:
                self._event(kind, thing)
                sent = version
            left = deadline - time.monotonic()
            if left <= 0:
                break
            state.lock.wait(min(left, 0.5))
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, kind: str, thing: dict[str, Any]) -> None:
        line = json.dumps({"type": kind, "object": thing}).encode() + b"\n"
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.flush()

    def _patched(self, path: str, query: dict[str, str]) -> Any:
        body = self._body()
        if self.headers.get("Content-Type") not in _MERGES:
            # A JSON patch is a list of operations, not a partial object.
            raise _Refused(415, "UnsupportedMediaType")
        if found := _DEPLOYMENT.fullmatch(path):
            return self._patch_deployment(path, found[1], found[2], body, query, scale=bool(found[3]))
        if (found := _POD.fullmatch(path)) and not found[3]:
            pod = self._pod(found[1], found[2])
            self._current(pod, body)
            changed = copy.deepcopy(pod)
            changed["metadata"].setdefault("annotations", {}).update(body["metadata"].get("annotations", {}))
            if "dryRun" not in query:
                changed["metadata"]["resourceVersion"] = self.state.next_version()
                self.state.pods[found[1], found[2]] = changed
                self._wrote(path, body)
            return changed
        raise _Refused(404, "NotFound")

    def _patch_deployment(
        self, path: str, namespace: str, name: str, body: dict[str, Any], query: dict[str, str], *, scale: bool
    ) -> Any:
        deployment = self._deployment(namespace, name)
        self._current(deployment, body)
        changed = copy.deepcopy(deployment)
        spec = body.get("spec", {})
        if "replicas" in spec:
            changed["spec"]["replicas"] = spec["replicas"]
        template = spec.get("template", {}).get("spec", {})
        if not scale:
            changed["spec"]["template"]["spec"].update(template)
        if "dryRun" not in query:
            roll = changed["spec"]["template"] != deployment["spec"]["template"]
            changed["metadata"]["resourceVersion"] = self.state.next_version()
            self.state.deployments[namespace, name] = changed
            self._wrote(path, body)
            self.state.reconcile(namespace, name, roll=roll)
        if scale:
            return {"metadata": changed["metadata"], "spec": {"replicas": changed["spec"]["replicas"]}}
        return changed

    def _evicted(self, path: str, query: dict[str, str]) -> Any:
        body = self._body()
        found = _POD.fullmatch(path)
        if found is None or not found[3]:
            raise _Refused(404, "NotFound")
        if (body.get("apiVersion"), body.get("kind")) != ("policy/v1", "Eviction"):
            raise _Refused(400, "BadRequest")
        pod = self._pod(found[1], found[2])
        wanted = body.get("deleteOptions", {}).get("preconditions", {}).get("uid")
        if wanted not in (None, pod["metadata"]["uid"]):
            raise _Refused(409, "Conflict")
        if found[2] in self.state.protected:
            raise _Refused(429, "TooManyRequests", {"Retry-After": "10"})
        if "dryRun" not in query:
            self._wrote(path, body)
            self.state.stop_pod((found[1], found[2]))
            self.state.reconcile(found[1], pod["metadata"]["labels"]["app"])
        return {"kind": "Status", "status": "Success"}

    def _deployment(self, namespace: str, name: str) -> dict[str, Any]:
        if (namespace, name) not in self.state.deployments:
            raise _Refused(404, "NotFound")
        return self.state.deployments[namespace, name]

    def _pod(self, namespace: str, name: str) -> dict[str, Any]:
        if (namespace, name) not in self.state.pods:
            raise _Refused(404, "NotFound")
        return self.state.pods[namespace, name]

    def _current(self, thing: dict[str, Any], body: dict[str, Any]) -> None:
        wanted = body.get("metadata", {}).get("resourceVersion")
        if wanted not in (None, thing["metadata"]["resourceVersion"]):
            raise _Refused(409, "Conflict")

    def _body(self) -> dict[str, Any]:
        size = int(self.headers.get("Content-Length") or 0)
        found: dict[str, Any] = json.loads(self.rfile.read(size))
        return found

    def _wrote(self, path: str, body: dict[str, Any]) -> None:
        self.state.writes.append((self.command, path, body))

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
