"""Built-in environments: service placement on an edge cluster, and routing in a mesh. Importing this registers the ids.

A world's code is loaded when one is made; the engine finds the ids through the entry point `parlmesh.environments`.
"""

from .registration import register_envs

__all__ = ["register_envs"]

register_envs()
