"""Self-play: games of two players, opponents, ratings. Importing this registers the games' ids.

The engine finds the ids by the entry points `parlmesh.environments`, and knows an opponent by
`parlmesh.environments.two_players` alone.
"""

from .registration import adopt, register_envs

__all__ = ["adopt", "register_envs"]

register_envs()
