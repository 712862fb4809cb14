"""Identities and roles. Knows nothing of how they are proven."""

import re
from dataclasses import dataclass, field
from enum import StrEnum

from parlmesh.errors import InvalidInput

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
"""Names appear in files, URIs and logs."""


class Role(StrEnum):
    """What a caller is to the fleet; `roles.py` says what each may call."""

    ACTOR = "actor"
    OPERATOR = "operator"
    READER = "reader"


def role_named(name: str) -> Role:
    """The role of that name."""
    try:
        return Role(name)
    except ValueError:
        raise InvalidInput(f'role must be one of {", ".join(Role)}, got "{name}"', role=name) from None


def check_name(name: str) -> None:
    """InvalidInput for a name that cannot be a node's."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise InvalidInput(f'name must be 1 to 63 of letters, digits, ".", "_", "-", got "{name}"', name=name)


@dataclass(frozen=True)
class Identity:
    """A proven name and its role, in one namespace or (empty) in the whole fleet."""

    name: str
    role: Role
    namespace: str = ""
    proof: str = field(default="", compare=False, repr=False)
    """What can be looked up again to see whether the proof still holds; no secret."""
    labels: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)
    """What the authority says of a node in its certificate."""

    def __str__(self) -> str:
        return f"{self.role} {self.name} of {self.namespace}" if self.namespace else f"{self.role} {self.name}"

    @property
    def owns_fleet(self) -> bool:
        """Whether it is an operator of the whole fleet. All others are strangers with a badge, who have quotas."""
        return self.role is Role.OPERATOR and not self.namespace

    def speaks_for(self, node: str) -> bool:
        """Whether the identity may act in the name of a node: an operator for all, an actor for itself."""
        return self.role is Role.OPERATOR or (self.role is Role.ACTOR and self.name == node)


ANYONE = Identity("anyone", Role.OPERATOR)
"""The caller of a server without security."""
