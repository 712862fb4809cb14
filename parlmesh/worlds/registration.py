"""The ids under which gymnasium knows the worlds."""

from typing import Any

import gymnasium

_PLACEMENT = "parlmesh.worlds.placement.environment"

IDS: dict[str, dict[str, Any]] = {
    f"parlmesh/Placement-v{version}": {
        "entry_point": f"{_PLACEMENT}:PlacementEnv",
        "vector_entry_point": f"{_PLACEMENT}:PlacementVectorEnv",
        "kwargs": {"version": version},
        # The worlds check their own actions, and an order checker would cost more than a step.
        "disable_env_checker": True,
        "order_enforce": False,
    }
    for version in (1, 2, 3)
}


def register_envs() -> None:
    """Makes the ids known; again is harmless."""
    for name, arguments in IDS.items():
        if name not in gymnasium.registry:
            gymnasium.register(id=name, **arguments)
