"""Policies: described by a specification in data, evaluated with numpy on actors, trained with torch on the learner."""

from .acting import Policy, load_policy
from .blob import pack_policy, unpack_policy
from .spec import PolicySpec

__all__ = ["Policy", "PolicySpec", "load_policy", "pack_policy", "unpack_policy"]
