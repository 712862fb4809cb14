"""A single run as a JobSet: scheduler, learner, actors, and a pod that waits for the end of the run."""

from typing import Any

from .kubernetes import CERTIFICATES, CONFIGURATION, DATA, USER, Object
from .service_configs import LEARNER_PORT, RUN_ID, SCHEDULER_PORT
from .settings import DeploySettings

# The port at which the ranks of a learner meet; torch's default.
MASTER_PORT = 29500


def batch_hosts(settings: DeploySettings) -> dict[str, str]:
    """The host names that a JobSet gives the two servers' pods."""
    name = f"{settings.name}-batch"
    return {service: f"{name}-{service}-0-0.{name}" for service in ("scheduler", "learner")}


def jobset(settings: DeploySettings) -> list[Object]:
    """The volume claim for the run's files, and the JobSet."""
    hosts = batch_hosts(settings)
    at = {
        "scheduler": f"{hosts['scheduler']}:{SCHEDULER_PORT}",
        "learner": f"{hosts['learner']}:{LEARNER_PORT}",
    }
    metadata = {"name": f"{settings.name}-batch", "namespace": settings.namespace}
    commands: dict[str, list[str]] = {
        "scheduler": _service("scheduler", "store.path=/tmp/scheduler.sqlite"),
        "learner": _service("learner", f"scheduler={at['scheduler']}"),
        "actor": _service("actor", f"scheduler={at['scheduler']}", f"learner={at['learner']}"),
        "wait": ["parlmesh", "train", "wait", "--run", RUN_ID, "--learner", at["learner"]],
    }
    jobs = [
        _job(settings, "scheduler", 1, commands["scheduler"]),
        _job(settings, "learner", 1, commands["learner"], claim=f"{settings.name}-runs", master=hosts["learner"]),
        *_ranks(settings, commands["learner"], hosts["learner"]),
        _job(settings, "actor", settings.actors, commands["actor"]),
        _job(settings, "wait", 1, commands["wait"]),
    ]
    claim: Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{settings.name}-runs", "namespace": settings.namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": settings.learner_storage}},
        },
    }
    spec = {
        # The other jobs never end: the set is complete when the waiting job has ended.
        "successPolicy": {"operator": "All", "targetReplicatedJobs": ["wait"]},
        "failurePolicy": {"maxRestarts": 3},
        "replicatedJobs": jobs,
    }
    return [claim, {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}]


def _ranks(settings: DeploySettings, command: list[str], host: str) -> list[Object]:
    """The other ranks of the learner: pods without its files, which find it by torch's environment variables."""
    others = settings.learner_processes - 1
    if not others:
        return []
    numbered = ["sh", "-c", 'export RANK=$((JOB_COMPLETION_INDEX + 1)); exec "$@"', "sh", *command]
    return [_job(settings, "ranks", others, numbered, master=host)]


def _service(service: str, *settings: str) -> list[str]:
    command = [f"parlmesh-{service}", "--config", f"{CONFIGURATION}/{service}.yaml"]
    return [*command, *(part for each in settings for part in ("--set", each))]


def _job(
    settings: DeploySettings, name: str, pods: int, command: list[str], claim: str = "", master: str = ""
) -> Object:
    room: Object = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {"sizeLimit": "1Gi"}}
    volumes: list[Object] = [
        {"name": "configuration", "configMap": {"name": f"{settings.name}-configuration"}},
        {"name": "temporary", "emptyDir": {"sizeLimit": "256Mi"}},
        {"name": "data", **room},
    ]
    mounts: list[Object] = [
        {"name": "configuration", "mountPath": CONFIGURATION, "readOnly": True},
        {"name": "temporary", "mountPath": "/tmp"},  # noqa: S108  # the container's own
        {"name": "data", "mountPath": DATA},
    ]
    environment: list[Object] = []
    if settings.secure:
        secret = {"scheduler": "scheduler", "learner": "learner", "ranks": "learner"}.get(name, "batch")
        volumes.append(
            {"name": "certificates", "secret": {"secretName": f"{settings.name}-{secret}", "defaultMode": 0o440}}
        )
        mounts.append({"name": "certificates", "mountPath": CERTIFICATES, "readOnly": True})
        if name == "actor":
            # Pods of a job have no stable names: all are one node, with an actor each.
            prefix = "PARLMESH_ACTOR__SECURITY__"
            environment = [
                {"name": f"{prefix}CERTIFICATE", "value": f"{CERTIFICATES}/{settings.name}-batch.crt"},
                {"name": f"{prefix}KEY", "value": f"{CERTIFICATES}/{settings.name}-batch.key"},
            ]
        elif name == "wait":
            environment = [
                {"name": "PARLMESH_CA", "value": f"{CERTIFICATES}/ca.crt"},
                {"name": "PARLMESH_TOKEN_FILE", "value": f"{CERTIFICATES}/operator.token"},
            ]
    if master and settings.learner_processes > 1:
        together = {"MASTER_ADDR": master, "MASTER_PORT": MASTER_PORT, "WORLD_SIZE": settings.learner_processes}
        together |= {"RANK": 0} if name == "learner" else {}
        environment += [{"name": variable, "value": str(value)} for variable, value in together.items()]
    container: dict[str, Any] = {
        "name": name,
        "image": settings.image,
        "command": command,
        "env": environment,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }
    pod = {
        "restartPolicy": "OnFailure",
        "automountServiceAccountToken": False,
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
    job = {
        "completionMode": "Indexed",
        "parallelism": pods,
        "completions": pods,
        "backoffLimit": 6,
        "template": {"spec": pod},
    }
    return {"name": name, "replicas": 1, "template": {"spec": job}}
