"""The ids under which gymnasium knows the worlds."""

from typing import Any

import gymnasium

_PLACEMENT = "parlmesh.worlds.placement.environment"
_ROUTING = "parlmesh.worlds.routing.environment"
# The worlds check their own actions, and an order checker would cost more than a step.
_CHECKED: dict[str, Any] = {"disable_env_checker": True, "order_enforce": False}

IDS: dict[str, dict[str, Any]] = {
    f"parlmesh/Placement-v{version}": {
        "entry_point": f"{_PLACEMENT}:PlacementEnv",
        "vector_entry_point": f"{_PLACEMENT}:PlacementVectorEnv",
        "kwargs": {"version": version},
        **_CHECKED,
    }
    for version in (1, 2, 3)
}
IDS["parlmesh/MeshRouting-v0"] = {
    "entry_point": f"{_ROUTING}:MeshRoutingEnv",
    "vector_entry_point": f"{_ROUTING}:MeshRoutingVectorEnv",
    **_CHECKED,
}


def register_envs() -> None:
    """Makes the ids known; again is harmless."""
    for name, arguments in IDS.items():
        if name not in gymnasium.registry:
            gymnasium.register(id=name, **arguments)
            # Placement's versions are three problems, not editions of one: gymnasium is not to call v1 out of date, nor
            # to guess a version that was not named. It compares versions of equal names.
            gymnasium.registry[name].name = name.rpartition("/")[2]
