"""Identities and roles. Knows nothing of how they are proven."""

from dataclasses import dataclass
from enum import StrEnum

from parlmesh.errors import InvalidInput


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


@dataclass(frozen=True)
class Identity:
    """A proven name and its role."""

    name: str
    role: Role

    def __str__(self) -> str:
        return f"{self.role} {self.name}"

    def speaks_for(self, node: str) -> bool:
        """Whether the identity may act in the name of a node: an operator for all, an actor for itself."""
        return self.role is Role.OPERATOR or (self.role is Role.ACTOR and self.name == node)


ANYONE = Identity("anyone", Role.OPERATOR)
"""The caller of a server without security."""
