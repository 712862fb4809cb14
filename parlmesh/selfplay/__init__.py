"""Self-play: two-player games, opponents, ratings. Importing this registers the games' ids.

The engine finds the ids through the entry points `parlmesh.environments`, and knows opponents only through
`parlmesh.environments.two_players`.
"""

from .registration import adopt, register_envs

__all__ = ["adopt", "register_envs"]

register_envs()
