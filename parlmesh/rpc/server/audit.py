"""The audit log of changes: who, what, when, from where. One line per unary call, or per stream when it opens."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from parlmesh.security import Identity
from parlmesh.telemetry import get_logger

_LOOKS = ("Get", "List", "Watch", "Query", "Explain", "Check", "ServerReflectionInfo")
# Called very often, within work that was accepted before.
_HOT = frozenset({"/parlmesh.v1.FederationService/SubmitUpdate"})
_MOST_NAMES = 5
_LONGEST = 200

audit = get_logger("parlmesh.audit")


def is_change(method: str) -> bool:
    """Whether calls of the method are worth a line."""
    return method not in _HOT and not method.rpartition("/")[2].startswith(_LOOKS)


def note_change(method: str, identity: Identity, peer: str, code: str, request: Any) -> None:
    """Logs a call that was admitted, and how it ended."""
    audit.info("change", method=method, identity=identity, peer=peer, code=code, request=dict(_about(request)))


def _about(request: Any) -> Iterator[tuple[str, object]]:
    """The short plain values of a request; of long ones only the size."""
    if isinstance(request, bytes):
        yield "bytes", len(request)
    elif isinstance(request, Message):
        for field, value in request.ListFields():
            if field.is_repeated:
                yield field.name, _names(value) if field.type == FieldDescriptor.TYPE_STRING else len(value)
            elif field.type == FieldDescriptor.TYPE_STRING:
                yield field.name, value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..."
            elif field.type not in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_BYTES):
                yield field.name, value


def _names(values: Any) -> list[str]:
    shown = [value[:_LONGEST] for value in values[:_MOST_NAMES]]
    return shown if len(values) <= _MOST_NAMES else [*shown, f"and {len(values) - _MOST_NAMES} more"]
