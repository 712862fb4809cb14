"""Handlers: what an actor can do, one kind each. They know nothing of leases; `slots` runs them."""

from .protocol import EMPTY, Cancelled, Context, Handler, HandlerError, Resettable, Result, RunsIn, Tail

__all__ = ["EMPTY", "Cancelled", "Context", "Handler", "HandlerError", "Resettable", "Result", "RunsIn", "Tail"]
