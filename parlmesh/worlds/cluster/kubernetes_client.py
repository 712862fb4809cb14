"""The adapter's Kubernetes calls, over the official client. Calls have deadlines; lists come in pages."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import urllib3
import yaml
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException

from parlmesh.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    FleetError,
    InvalidInput,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)

_PAGE = 250
_DEADLINE = (3.0, 10.0)
"""Seconds to connect and to read."""
_LISTINGS = 3
"""Attempts at a list or watch that expires in the meantime."""
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)
"""Exceptions of the official client when a file or an answer has an unexpected form."""
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


def connect(kubeconfig: Path | None = None, context: str | None = None, server: str = "") -> "Gateway":
    """Connects by a kubeconfig file, from inside the cluster, or to a server without credentials (`kubectl proxy`)."""
    if server:
        if not server.startswith(("http://", "https://")):
            raise InvalidInput(f"server must be an http or https address, got {server!r}", reason="KUBECONFIG")
        settings = client.Configuration(host=server)
    else:
        settings = client.Configuration()
        try:
            if kubeconfig is None and context is None:
                try:
                    config.load_incluster_config(client_configuration=settings)
                except config.ConfigException:
                    config.load_kube_config(client_configuration=settings)
            else:
                config.load_kube_config(str(kubeconfig) if kubeconfig else None, context, settings)
        except (config.ConfigException, yaml.YAMLError, OSError, *_UNREADABLE) as error:
            which = f"kubeconfig {kubeconfig} cannot be used" if kubeconfig else "there is no usable kubeconfig"
            raise InvalidInput(f"{which}: {_one_line(error)}", reason="KUBECONFIG") from error
    # Report a missing answer immediately; the caller decides whether to try again.
    settings.retries = False
    return Gateway(client.ApiClient(settings))


class Gateway:
    """Reads and writes; every error is one of `parlmesh.errors`."""

    def __init__(self, api: Any) -> None:
        self._core, self._apps = client.CoreV1Api(api), client.AppsV1Api(api)
        self._custom = client.CustomObjectsApi(api)

    def nodes(self) -> list[Any]:
        """All nodes."""
        return self._listed("list nodes", self._core.list_node)[0]

    def pods(self, namespace: str) -> tuple[list[Any], str]:
        """Pods of a namespace, and the version at which they were listed."""
        return self._listed(f"list pods in {namespace}", self._core.list_namespaced_pod, namespace)

    def deployment(self, namespace: str, name: str) -> Any:
        """One deployment."""
        with _told(f"read deployment {namespace}/{name}"):
            return self._apps.read_namespaced_deployment(name, namespace, _request_timeout=_DEADLINE)

    def node_usage(self) -> dict[str, dict[str, str]]:
        """Measured CPU and memory use by node, from metrics.k8s.io."""
        with _told("read metrics.k8s.io"):
            found = self._custom.list_cluster_custom_object(
                "metrics.k8s.io", "v1beta1", "nodes", _request_timeout=_DEADLINE
            )
            return {item["metadata"]["name"]: dict(item["usage"]) for item in found.get("items", [])}

    # With `trial`, the server validates the write and changes nothing. Writes return the new resource version.

    def scale(self, namespace: str, name: str, replicas: int, version: str, *, trial: bool) -> str:
        """Sets the replicas if the deployment still has that version."""
        body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        with _told(f"scale {namespace}/{name} to {replicas}"):
            return _version(
                self._apps.patch_namespaced_deployment_scale(name, namespace, body, **_options(trial=trial))
            )

    def prefer_nodes(self, namespace: str, name: str, weights: Mapping[str, int], version: str, *, trial: bool) -> str:
        """Replaces the deployment's preferred node affinity."""
        preferences = [
            {
                "weight": weight,
                "preference": {
                    "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]
                },
            }
            for node, weight in sorted(weights.items())
        ]
        affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferences}}
        body = {
            "metadata": {"resourceVersion": version},
            "spec": {"template": {"spec": {"affinity": affinity}}},
        }
        with _told(f"set the node affinity of {namespace}/{name}"):
            return _version(self._apps.patch_namespaced_deployment(name, namespace, body, **_options(trial=trial)))

    def mark_for_removal(self, namespace: str, name: str, version: str, *, trial: bool) -> str:
        """Makes the pod the first one that its ReplicaSet removes."""
        body = {"metadata": {"resourceVersion": version, "annotations": {DELETION_COST: "-1000"}}}
        with _told(f"mark pod {namespace}/{name}"):
            return _version(self._core.patch_namespaced_pod(name, namespace, body, **_options(trial=trial)))

    def evict(self, namespace: str, name: str, uid: str, *, trial: bool) -> str:
        """Evicts that pod, identified by uid, within its disruption budget."""
        body = client.V1Eviction(
            api_version="policy/v1",
            kind="Eviction",
            metadata=client.V1ObjectMeta(name=name, namespace=namespace),
            delete_options=client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=uid)),
        )
        with _told(f"evict pod {namespace}/{name}"):
            self._core.create_namespaced_pod_eviction(name, namespace, body, **_options(trial=trial))
        return ""

    def wait_for_pods(self, namespace: str, settled: Callable[[list[Any]], bool], seconds: int) -> list[Any]:
        """Watches until `settled` holds for the pods. An expired watch restarts from a fresh list, a few times."""
        for _ in range(_LISTINGS):
            pods, version = self.pods(namespace)
            known = {pod.metadata.uid: pod for pod in pods}
            if settled(list(known.values())):
                return list(known.values())
            try:
                with _told(f"watch pods in {namespace}"):
                    for event in watch.Watch().stream(
                        self._core.list_namespaced_pod,
                        namespace,
                        resource_version=version,
                        timeout_seconds=seconds,
                        _request_timeout=(_DEADLINE[0], seconds + _DEADLINE[1]),
                    ):
                        pod = event["object"]
                        known[pod.metadata.uid] = pod
                        if event["type"] == "DELETED":
                            del known[pod.metadata.uid]
                        if settled(list(known.values())):
                            return list(known.values())
            except _Expired:
                continue
            raise DeadlineExceeded(f"pods in {namespace} did not settle within {seconds} s", reason="NOT_SETTLED")
        raise FailedPrecondition(f"the watch of pods in {namespace} expired {_LISTINGS} times", reason="WATCH_EXPIRED")

    def _listed(self, what: str, call: Any, *arguments: str) -> tuple[list[Any], str]:
        for _ in range(_LISTINGS):
            found: list[Any] = []
            token: str | None = None
            try:
                while True:
                    with _told(what):
                        page = call(*arguments, limit=_PAGE, _continue=token, _request_timeout=_DEADLINE)
                    found += page.items
                    token = page.metadata._continue
                    if not token:
                        return found, str(page.metadata.resource_version)
            except _Expired:
                continue
        raise FailedPrecondition(f"{what}: the list expired {_LISTINGS} times between its pages", reason="LIST_EXPIRED")


def _options(*, trial: bool) -> dict[str, Any]:
    return {"_request_timeout": _DEADLINE, **({"dry_run": "All"} if trial else {})}


def _version(answer: Any) -> str:
    return str(answer.metadata.resource_version)


class _Expired(FleetError):
    """410: the requested version is too old; list again."""


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except ApiException as error:
        raise _error(what, error) from error
    except urllib3.exceptions.HTTPError as error:
        raise Unavailable(f"{what}: the API server does not answer: {error}", reason="API_SERVER") from error
    except _UNREADABLE as error:
        said = f"{what}: the API server's answer cannot be read: {_one_line(error)}"
        raise FailedPrecondition(said, reason="API_SERVER") from error


def _one_line(said: object) -> str:
    return " ".join(str(said).split())[:200]


def _error(what: str, error: Any) -> FleetError:
    said = f"{what}: {error.status} {error.reason}"
    if error.status == 410:
        return _Expired(said)
    if error.status == 429:
        wait = (error.headers or {}).get("Retry-After", "0")
        seconds = float(wait) if str(wait).isdigit() else 0.0
        return ResourceExhausted(f"{said}; try again later", reason="TOO_MANY", retry_after_seconds=seconds)
    kinds: dict[int, type[FleetError]] = {
        400: InvalidInput,
        401: Unauthenticated,
        403: PermissionDenied,
        404: NotFound,
        409: FailedPrecondition,
        422: InvalidInput,
    }
    hints = {409: "; it was changed by another party, and nothing was written", 403: "; the RBAC rules do not allow it"}
    kind = kinds.get(error.status, Unavailable)
    return kind(said + hints.get(error.status, ""), reason=f"API_{error.status}")
