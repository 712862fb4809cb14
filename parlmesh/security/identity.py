"""Identities and roles, independent of how they are proven."""

import re
from dataclasses import dataclass, field
from enum import StrEnum

from parlmesh.errors import InvalidInput

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
"""Allowed names: they appear in files, URIs and logs."""


class Role(StrEnum):
    """The role of a caller; `roles.py` lists what each may call."""

    ACTOR = "actor"
    OPERATOR = "operator"
    READER = "reader"


def role_named(name: str) -> Role:
    """The role with that name."""
    try:
        return Role(name)
    except ValueError:
        raise InvalidInput(f'role must be one of {", ".join(Role)}, got "{name}"', role=name) from None


def check_name(name: str) -> None:
    """Raises InvalidInput for a name that no identity may have."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise InvalidInput(f'name must be 1 to 63 of letters, digits, ".", "_", "-", got "{name}"', name=name)


@dataclass(frozen=True)
class Identity:
    """A proven name and role, in one namespace or, if that is empty, in the whole fleet."""

    name: str
    role: Role
    namespace: str = ""
    proof: str = field(default="", compare=False, repr=False)
    """A handle to check later whether the proof is still valid; not a secret."""
    labels: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)
    """Labels of a node that the authority attests in its certificate."""

    def __str__(self) -> str:
        return f"{self.role} {self.name} of {self.namespace}" if self.namespace else f"{self.role} {self.name}"

    @property
    def owns_fleet(self) -> bool:
        """Whether it is an operator of the whole fleet. All other identities are untrusted and have quotas."""
        return self.role is Role.OPERATOR and not self.namespace

    def speaks_for(self, node: str) -> bool:
        """Whether the identity may act for a node: an operator for any node, an actor only for itself."""
        return self.role is Role.OPERATOR or (self.role is Role.ACTOR and self.name == node)


ANYONE = Identity("anyone", Role.OPERATOR)
"""The caller of a server without security."""
