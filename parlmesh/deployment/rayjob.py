"""A run inside its own KubeRay cluster: a RayJob whose entrypoint is `parlmesh ray up --wait`."""

from .kubernetes import Object
from .service_configs import RUN_ID
from .settings import DeploySettings
from .yaml_files import MADE, dump


def files(settings: DeploySettings) -> dict[str, str]:
    """The RayJob's file."""
    return {"rayjob.yaml": dump(rayjob(settings), header=MADE)}


def rayjob(settings: DeploySettings) -> Object:
    """The RayJob. Scheduler and learner run on the head or any worker, each actor uses a worker."""
    wanted = {
        "name": settings.name,
        "actors": settings.actors,
        "slots": settings.slots,
        "secure": str(settings.secure).lower(),
        "run_id": RUN_ID,
        "training.environment.id": settings.environment,
        "training.step_budget": settings.step_budget,
        "training.goal_return": settings.goal_return,
    }
    assignments = " ".join(f"--set {key}={value}" for key, value in wanted.items())
    entrypoint = f"parlmesh ray up --address auto --certificates /tmp/certs {assignments} --wait"
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": f"{settings.name}-ray", "namespace": settings.namespace},
        "spec": {
            "entrypoint": entrypoint,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "backoffLimit": 2,
            "rayClusterSpec": {
                "headGroupSpec": {
                    "rayStartParams": {"dashboard-host": "0.0.0.0"},  # noqa: S104 - the pod's own
                    "template": _pod(settings, "ray-head", settings.learner_cpu, settings.learner_memory),
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "actors",
                        "replicas": settings.actors,
                        "minReplicas": 1,
                        "maxReplicas": max(settings.actors, settings.most_actors),
                        "rayStartParams": {"num-cpus": str(settings.slots)},
                        "template": _pod(settings, "ray-worker", settings.actor_cpu, settings.actor_memory),
                    }
                ],
            },
        },
    }


def _pod(settings: DeploySettings, name: str, cpu: str, memory: str) -> Object:
    """A pod whose image also contains Ray: pip install 'parlmesh[all,ray]'."""
    room = {"cpu": cpu, "memory": memory}
    limits = {"resources": {"requests": room, "limits": {"memory": memory}}}
    return {"spec": {"containers": [{"name": name, "image": f"{settings.image}-ray", **limits}]}}
