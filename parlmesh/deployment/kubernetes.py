"""A fleet as Kubernetes objects: the single source of the kustomize base and of the Helm chart."""

from typing import Any

from .service_configs import (
    ACTOR_METRICS,
    LEARNER_METRICS,
    LEARNER_PORT,
    RELAY_METRICS,
    RELAY_PORT,
    SCHEDULER_METRICS,
    SCHEDULER_PORT,
    Layout,
)
from .settings import DeploySettings
from .yaml_files import dump

Object = dict[str, Any]

CERTIFICATES = "/etc/parlmesh/certificates"
CONFIGURATION = "/etc/parlmesh/configuration"
DATA = "/var/lib/parlmesh"
USER = 10001


class Objects:
    """All objects of a fleet in its namespace."""

    def __init__(self, settings: DeploySettings) -> None:
        self._settings = settings
        self._layout = Layout(
            settings,
            scheduler=self._called("scheduler"),
            learner=self._called("learner"),
            relay=self._called("relay"),
            data=DATA,
            certificates=CERTIFICATES,
            open_metrics=True,
        )

    def by_file(self) -> dict[str, list[Object]]:
        """The objects by file of the base."""
        return {
            "configuration.yaml": [self._service_account(), self._configuration()],
            "scheduler.yaml": [self._service("scheduler", SCHEDULER_PORT, SCHEDULER_METRICS), self._scheduler()],
            "learner.yaml": [self._service("learner", LEARNER_PORT, LEARNER_METRICS), self._learner()],
            "relay.yaml": [self._service("relay", RELAY_PORT, RELAY_METRICS), self._relay()],
            "actors.yaml": [self._service("actors", None, ACTOR_METRICS), self._actors(), self._budget()],
            "network.yaml": self._network(),
        }

    def namespace(self) -> Object:
        """A namespace in which only unprivileged pods may run."""
        enforced = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
        return {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": self._settings.namespace, "labels": enforced},
        }

    def autoscaler(self) -> Object:
        """Scales actors by the number of waiting and running tasks, an external metric."""
        settings = self._settings
        backlog = {
            "metric": {"name": "parlmesh_backlog_tasks", "selector": {"matchLabels": {"fleet": settings.name}}},
            "target": {"type": "AverageValue", "averageValue": str(settings.slots)},
        }
        return {
            **self._head("autoscaling/v2", "HorizontalPodAutoscaler", "actors"),
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": self._called("actors")},
                "minReplicas": settings.actors,
                "maxReplicas": settings.most_actors,
                "metrics": [{"type": "External", "external": backlog}],
                # A briefly empty queue is no reason to discard what actors have loaded.
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 300}},
            },
        }

    def pod_monitor(self) -> Object:
        """For the Prometheus operator: scrapes every pod of the fleet on the port named metrics."""
        return {
            **self._head("monitoring.coreos.com/v1", "PodMonitor", "fleet"),
            "spec": {
                "selector": {"matchLabels": self._labels()},
                "podMetricsEndpoints": [
                    {
                        "port": "metrics",
                        "relabelings": [
                            {"targetLabel": "fleet", "replacement": self._settings.name},
                            {
                                "sourceLabels": ["__meta_kubernetes_pod_label_app_kubernetes_io_component"],
                                "targetLabel": "service",
                            },
                        ],
                    }
                ],
            },
        }

    def _called(self, component: str) -> str:
        return f"{self._settings.name}-{component}"

    def _labels(self, component: str = "") -> dict[str, str]:
        found = {"app.kubernetes.io/name": "parlmesh", "app.kubernetes.io/instance": self._settings.name}
        return {**found, "app.kubernetes.io/component": component} if component else found

    def _head(self, version: str, kind: str, component: str) -> Object:
        return {
            "apiVersion": version,
            "kind": kind,
            "metadata": {
                "name": self._called(component),
                "namespace": self._settings.namespace,
                "labels": self._labels(component),
            },
        }

    def _service_account(self) -> Object:
        return {**self._head("v1", "ServiceAccount", "fleet"), "automountServiceAccountToken": False}

    def _configuration(self) -> Object:
        files = {
            "scheduler.yaml": self._layout.scheduler(),
            "learner.yaml": self._layout.learner(),
            "relay.yaml": self._layout.relay(),
            "actor.yaml": self._layout.actor(),
        }
        data = {name: dump(content, header="") for name, content in files.items()}
        return {**self._head("v1", "ConfigMap", "configuration"), "data": data}

    def _service(self, component: str, port: int | None, metrics: int) -> Object:
        """Headless, because gRPC keeps one connection, which a virtual address would pin anyway."""
        ports = [{"name": "metrics", "port": metrics, "targetPort": "metrics"}]
        if port is not None:
            ports.insert(0, {"name": "grpc", "port": port, "targetPort": "grpc", "appProtocol": "grpc"})
        spec = {"clusterIP": "None", "selector": self._labels(component), "ports": ports}
        return {**self._head("v1", "Service", component), "spec": spec}

    def _scheduler(self) -> Object:
        container = self._container(
            "scheduler",
            self._settings.scheduler_cpu,
            self._settings.scheduler_memory,
            SCHEDULER_METRICS,
            SCHEDULER_PORT,
        )
        return self._stateful("scheduler", container, storage=self._settings.scheduler_storage)

    def _learner(self) -> Object:
        container = self._container(
            "learner", self._settings.learner_cpu, self._settings.learner_memory, LEARNER_METRICS, LEARNER_PORT
        )
        return self._stateful("learner", container, storage=self._settings.learner_storage)

    def _relay(self) -> Object:
        """Has no storage: a restarted relay fetches policies again."""
        container = self._container(
            "relay", self._settings.relay_cpu, self._settings.relay_memory, RELAY_METRICS, RELAY_PORT
        )
        return self._stateful("relay", container, storage=None)

    def _actors(self) -> Object:
        """Each pod is a separate node, with the certificate of its name."""
        container = self._container("actor", self._settings.actor_cpu, self._settings.actor_memory, ACTOR_METRICS, None)
        container["env"] = [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
        names = {"NODE_ID": "$(POD_NAME)", "ACTOR_ID": "$(POD_NAME)-actor"}
        if self._settings.secure:
            names["SECURITY__CERTIFICATE"] = f"{CERTIFICATES}/$(POD_NAME).crt"
            names["SECURITY__KEY"] = f"{CERTIFICATES}/$(POD_NAME).key"
        container["env"] += [{"name": f"PARLMESH_ACTOR__{name}", "value": value} for name, value in names.items()]
        found = self._stateful("actors", container, storage=None)
        found["spec"]["replicas"] = self._settings.actors
        found["spec"]["podManagementPolicy"] = "Parallel"
        spread = {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": self._labels("actors")},
        }
        found["spec"]["template"]["spec"]["topologySpreadConstraints"] = [spread]
        return found

    def _container(self, service: str, cpu: str, memory: str, metrics: int, port: int | None) -> Object:
        ports = [{"name": "metrics", "containerPort": metrics}]
        health: Object = {"httpGet": {"path": "/health", "port": "metrics"}}
        alive: Object = {"httpGet": {"path": "/metrics", "port": "metrics"}}
        if port is not None:
            ports.insert(0, {"name": "grpc", "containerPort": port})
            if not self._settings.secure:
                # The kubelet's gRPC probe has no TLS; with certificates, the HTTP page reports the same as gRPC health.
                health = {"grpc": {"port": port}}
        return {
            "name": service,
            "image": self._settings.image,
            "command": [f"parlmesh-{service}", "--config", f"{CONFIGURATION}/{service}.yaml"],
            "ports": ports,
            "startupProbe": {**alive, "periodSeconds": 2, "failureThreshold": 60},
            "readinessProbe": {**health, "periodSeconds": 5},
            "livenessProbe": {**alive, "periodSeconds": 10, "failureThreshold": 6},
            "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [
                {"name": "configuration", "mountPath": CONFIGURATION, "readOnly": True},
                {"name": "data", "mountPath": DATA},
                {"name": "temporary", "mountPath": "/tmp"},  # noqa: S108  # the container's own
            ],
        }

    def _stateful(self, component: str, container: Object, *, storage: str | None) -> Object:
        volumes: list[Object] = [
            {"name": "configuration", "configMap": {"name": self._called("configuration")}},
            {"name": "temporary", "emptyDir": {"sizeLimit": "256Mi"}},
        ]
        if self._settings.secure:
            mount = {"name": "certificates", "mountPath": CERTIFICATES, "readOnly": True}
            container["volumeMounts"].insert(1, mount)
            volumes.append(
                {"name": "certificates", "secret": {"secretName": self._called(component), "defaultMode": 0o440}}
            )
        if storage is None:
            volumes.append({"name": "data", "emptyDir": {"sizeLimit": "1Gi"}})
        pod = {
            "serviceAccountName": self._called("fleet"),
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 30,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": volumes,
        }
        spec: Object = {
            "serviceName": self._called(component),
            "replicas": 1,
            "selector": {"matchLabels": self._labels(component)},
            "template": {"metadata": {"labels": self._labels(component)}, "spec": pod},
        }
        if storage is not None:
            claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}}
            spec["volumeClaimTemplates"] = [{"metadata": {"name": "data"}, "spec": claim}]
        return {**self._head("apps/v1", "StatefulSet", component), "spec": spec}

    def _budget(self) -> Object:
        """Only for the actors: the servers have one pod each, and draining their machine is meant to move them."""
        spec = {"maxUnavailable": "50%", "selector": {"matchLabels": self._labels("actors")}}
        return {**self._head("policy/v1", "PodDisruptionBudget", "actors"), "spec": spec}

    def _network(self) -> list[Object]:
        """Who may call whom: only Prometheus calls an actor, and actors call only the servers and DNS."""
        ours = {"podSelector": {"matchLabels": self._labels()}}
        clients = {"podSelector": {"matchLabels": {"parlmesh-client": self._settings.name}}}
        prometheus = {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._settings.monitoring_namespace}}
        }
        found = []
        for component, port, metrics in (
            ("scheduler", SCHEDULER_PORT, SCHEDULER_METRICS),
            ("learner", LEARNER_PORT, LEARNER_METRICS),
            ("relay", RELAY_PORT, RELAY_METRICS),
            ("actors", None, ACTOR_METRICS),
        ):
            ingress = [{"from": [prometheus], "ports": [{"protocol": "TCP", "port": metrics}]}]
            if port is not None:
                ingress.insert(0, {"from": [ours, clients], "ports": [{"protocol": "TCP", "port": port}]})
            spec: Object = {
                "podSelector": {"matchLabels": self._labels(component)},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": ingress,
                "egress": self._egress(component),
            }
            found.append({**self._head("networking.k8s.io/v1", "NetworkPolicy", component), "spec": spec})
        return found

    def _egress(self, component: str) -> list[Object]:
        servers = {
            "scheduler": [],
            "learner": ["scheduler"],
            "relay": ["learner"],
            "actors": ["scheduler", "learner", "relay"],
        }[component]
        ports = {"scheduler": SCHEDULER_PORT, "learner": LEARNER_PORT, "relay": RELAY_PORT}
        found: list[Object] = [
            {
                "to": [{"podSelector": {"matchLabels": self._labels(server)}}],
                "ports": [{"protocol": "TCP", "port": ports[server]}],
            }
            for server in servers
        ]
        dns = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
        ports_of_dns = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
        return [*found, {"to": [dns], "ports": ports_of_dns}] if servers else []
