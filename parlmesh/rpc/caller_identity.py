"""The identity of the caller of the current RPC."""

from contextvars import ContextVar

from parlmesh.security import ANYONE, Identity

_caller: ContextVar[Identity] = ContextVar("parlmesh_caller", default=ANYONE)


def caller() -> Identity:
    """The caller whose call this code serves; ANYONE when security is off or no call is being served."""
    return _caller.get()


def set_caller(identity: Identity) -> None:
    """Only for the gate in front of the servicers."""
    _caller.set(identity)
