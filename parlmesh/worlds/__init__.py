"""Worlds of our own: service placement on an edge cluster and routing in a mesh. Importing this registers their ids.

Nothing of a world is loaded before one is made; the engine finds the ids by the entry point `parlmesh.environments`.
"""

from .registration import register_envs

__all__ = ["register_envs"]

register_envs()
