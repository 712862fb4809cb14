"""The worlds' gymnasium ids."""

from typing import Any

import gymnasium

_PLACEMENT = "parlmesh.worlds.placement.environment"
_ROUTING = "parlmesh.worlds.routing.environment"
# The worlds check their own actions, and gymnasium's order checker would cost more than a step.
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
    """Registers the ids; repeated calls are harmless."""
    for name, arguments in IDS.items():
        if name not in gymnasium.registry:
            gymnasium.register(id=name, **arguments)
            # Placement's versions are three different problems, so gymnasium must neither call v1 out of date nor guess
            # a missing version. It only compares versions of equal names.
            gymnasium.registry[name].name = name.rpartition("/")[2]
