"""A fleet as objects of Kubernetes: the one source of the kustomize base and of the Helm chart."""

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
    """Everything a fleet needs in its namespace, by file."""

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
        """The files of the base."""
        return {
            "configuration.yaml": [self._service_account(), self._configuration()],
            "scheduler.yaml": [self._service("scheduler", SCHEDULER_PORT, SCHEDULER_METRICS), self._scheduler()],
            "learner.yaml": [self._service("learner", LEARNER_PORT, LEARNER_METRICS), self._learner()],
            "relay.yaml": [self._service("relay", RELAY_PORT, RELAY_METRICS), self._relay()],
            "actors.yaml": [self._service("actors", None, ACTOR_METRICS), self._actors(), self._budget()],
            "network.yaml": self._network(),
        }

    def namespace(self) -> Object:
        """Where only pods without privileges may run."""
        enforced = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
        return {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": self._settings.namespace, "labels": enforced},
        }

    def autoscaler(self) -> Object:
        """Actors by the tasks that wait or run, as the external metric says it."""
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
                # A queue that is empty for a moment is no reason to throw away what actors have loaded.
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 300}},
            },
        }

    def pod_monitor(self) -> Object:
        """For a Prometheus operator: every pod of the fleet, by the port called metrics."""
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
        """Headless: gRPC keeps one connection, which a virtual address would pin anyway."""
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
        """Keeps nothing: what it held is fetched again."""
        container = self._container(
            "relay", self._settings.relay_cpu, self._settings.relay_memory, RELAY_METRICS, RELAY_PORT
        )
        return self._stateful("relay", container, storage=None)

    def _actors(self) -> Object:
        """Each pod is a node of its own, with the certificate of its name."""
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
                # The kubelet's own gRPC probe speaks no TLS; with certificates, the page says what gRPC health says.
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
        """Of the actors alone: the others are one each, and whoever drains their machine means to move them."""
        spec = {"maxUnavailable": "50%", "selector": {"matchLabels": self._labels("actors")}}
        return {**self._head("policy/v1", "PodDisruptionBudget", "actors"), "spec": spec}

    def _network(self) -> list[Object]:
        """Who may call whom: nobody calls an actor but Prometheus, and actors call the servers and DNS alone."""
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
