"""parlmesh: trains policies and runs tasks on a fleet of mesh nodes. Importing it has no side effects.

The entry points are attributes of this package and are imported on first use: `parlmesh.train`,
`parlmesh.load_policy`, `parlmesh.task`, `parlmesh.fleet` and `parlmesh.Priority`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parlmesh.api.policy import load_policy as load_policy
    from parlmesh.api.train_call import train as train
    from parlmesh.client.sync import fleet as fleet
    from parlmesh.client.task_request import Priority as Priority
    from parlmesh.function_tasks import task as task

_DOORS = {
    "Priority": "parlmesh.client.task_request",
    "fleet": "parlmesh.client.sync",
    "load_policy": "parlmesh.api.policy",
    "task": "parlmesh.function_tasks",
    "train": "parlmesh.api.train_call",
}

# The extra, and those of its packages that a plain installation lacks.
_NEEDS = {
    "load_policy": ("actor", "safetensors"),
    "train": ("learner", "grpc_health", "gymnasium", "safetensors", "tensorboard", "torch"),
}


def __getattr__(name: str) -> Any:
    if name not in _DOORS:
        raise AttributeError(f"module 'parlmesh' has no attribute {name!r}")
    if name in _NEEDS:
        from parlmesh.optional_packages import need

        need(f"parlmesh.{name}", *_NEEDS[name])
    return getattr(importlib.import_module(_DOORS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_DOORS})
