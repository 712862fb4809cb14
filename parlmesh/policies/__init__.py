"""Policies: described by a specification, run with numpy on actors, trained with numpy or torch on the learner."""

from .numpy_acting import Choice, Policy, SearchingPolicy, load_policy
from .policy_file import pack_policy, unpack_policy
from .policy_spec import PolicySpec

__all__ = ["Choice", "Policy", "PolicySpec", "SearchingPolicy", "load_policy", "pack_policy", "unpack_policy"]
