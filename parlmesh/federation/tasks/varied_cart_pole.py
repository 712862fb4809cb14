"""CartPole with different physics on every node; its gymnasium id is NAME."""

from typing import Any

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv

NAME = "parlmesh/VariedCartPole-v0"


class VariedCartPole(CartPoleEnv):
    """One cart. `length` is half the pole's length."""

    def __init__(self, *, length: float = 0.5, masspole: float = 0.1, force: float = 10.0, **arguments: Any) -> None:
        super().__init__(**arguments)
        _set_physics(self, length, masspole, force)


class VariedCartPoles(CartPoleVectorEnv):
    """Many carts stepped at once."""

    def __init__(
        self,
        num_envs: int = 1,
        *,
        length: float = 0.5,
        masspole: float = 0.1,
        force: float = 10.0,
        **arguments: Any,
    ) -> None:
        super().__init__(num_envs=num_envs, **arguments)
        _set_physics(self, length, masspole, force)


def _set_physics(cart: Any, length: float, masspole: float, force: float) -> None:
    cart.length, cart.masspole, cart.force_mag = length, masspole, force
    cart.total_mass = cart.masspole + cart.masscart
    cart.polemass_length = cart.masspole * cart.length


if NAME not in gymnasium.registry:
    gymnasium.register(
        NAME,
        entry_point=VariedCartPole,
        vector_entry_point=VariedCartPoles,
        max_episode_steps=500,
        reward_threshold=475.0,
    )
