"""A fleet as containers on one machine, for podman-compose and docker compose."""

from typing import Any

from .certificates import actor_names
from .kubernetes import CERTIFICATES, CONFIGURATION, DATA, USER
from .service_configs import (
    ACTOR_METRICS,
    LEARNER_METRICS,
    LEARNER_PORT,
    RELAY_METRICS,
    SCHEDULER_METRICS,
    SCHEDULER_PORT,
    Layout,
)
from .settings import DeploySettings
from .yaml_files import dump


def files(settings: DeploySettings) -> dict[str, str]:
    """compose.yaml and the configuration files beside it."""
    layout = Layout(
        settings,
        scheduler="scheduler",
        learner="learner",
        relay="relay",
        data=DATA,
        certificates=CERTIFICATES,
        open_metrics=True,
    )
    services = {
        "scheduler": _server(settings, "scheduler", SCHEDULER_PORT, SCHEDULER_METRICS),
        "learner": _server(settings, "learner", LEARNER_PORT, LEARNER_METRICS),
        "relay": _relay(settings),
    }
    services["learner"]["depends_on"] = {"scheduler": {"condition": "service_healthy"}}
    for index, name in enumerate(actor_names(settings)[: settings.actors]):
        services[f"actor-{index}"] = _actor(settings, name)
    project = {"name": settings.name, "services": services, "volumes": {"scheduler": {}, "learner": {}}}
    return {
        "compose.yaml": dump(project),
        "scheduler.yaml": dump(layout.scheduler()),
        "learner.yaml": dump(layout.learner()),
        "relay.yaml": dump(layout.relay()),
        "actor.yaml": dump(layout.actor()),
    }


def _server(settings: DeploySettings, service: str, port: int, metrics: int) -> dict[str, Any]:
    found = _container(settings, service, metrics, [f"{service}:{DATA}"], [service])
    # Reachable only from this machine until you change it.
    found["ports"] = [f"127.0.0.1:{port}:{port}", f"127.0.0.1:{metrics}:{metrics}"]
    return found


def _relay(settings: DeploySettings) -> dict[str, Any]:
    """Reachable only within the project, for its actors; keeps no data."""
    found = _container(settings, "relay", RELAY_METRICS, [], ["relay"])
    found["ports"] = [f"127.0.0.1:{RELAY_METRICS}:{RELAY_METRICS}"]
    found["depends_on"] = {"learner": {"condition": "service_healthy"}}
    return found


def _actor(settings: DeploySettings, name: str) -> dict[str, Any]:
    found = _container(settings, "actor", ACTOR_METRICS, [], [name])
    environment = {"NODE_ID": name, "ACTOR_ID": f"{name}-actor"}
    if settings.secure:
        environment["SECURITY__CERTIFICATE"] = f"{CERTIFICATES}/{name}.crt"
        environment["SECURITY__KEY"] = f"{CERTIFICATES}/{name}.key"
    found["environment"] = {f"PARLMESH_ACTOR__{key}": value for key, value in environment.items()}
    found["depends_on"] = {"learner": {"condition": "service_healthy"}}
    return found


def _container(
    settings: DeploySettings, service: str, metrics: int, volumes: list[str], certificates: list[str]
) -> dict[str, Any]:
    mounted = [*volumes, f"./{service}.yaml:{CONFIGURATION}/{service}.yaml:ro"]
    if settings.secure:
        # Each container gets only its own key.
        names = ["ca.crt", *(f"{name}.{end}" for name in certificates for end in ("crt", "key"))]
        names += ["tokens.yaml"] if service != "actor" else []
        mounted += [f"./certificates/{name}:{CERTIFICATES}/{name}:ro" for name in names]
    probe = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{metrics}/health', timeout=2)"
    return {
        "image": settings.image,
        "command": [f"parlmesh-{service}", "--config", f"{CONFIGURATION}/{service}.yaml"],
        "user": f"{USER}:{USER}",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "tmpfs": ["/tmp:size=256m,mode=1777"]  # noqa: S108  # the container's own
        + ([] if volumes else [f"{DATA}:size=256m,mode=1777"]),
        "pids_limit": 512,
        "restart": "unless-stopped",
        "stop_grace_period": "30s",
        "volumes": mounted,
        "healthcheck": {
            "test": ["CMD", "python3", "-c", probe],
            "interval": "5s",
            "timeout": "5s",
            "retries": 12,
            "start_period": "30s",
        },
    }
