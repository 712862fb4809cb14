"""Policies: described by a specification in data, evaluated with numpy on actors, trained with torch on the learner."""

from .acting import Choice, Policy, SearchingPolicy, load_policy
from .blob import pack_policy, unpack_policy
from .spec import PolicySpec

__all__ = ["Choice", "Policy", "PolicySpec", "SearchingPolicy", "load_policy", "pack_policy", "unpack_policy"]
