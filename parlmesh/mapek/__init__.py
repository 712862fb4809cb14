"""MAPE-K: a loop that watches a fleet's nodes, finds a sick one, takes one action there and remembers what worked."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .mapek_executor import PARLMAPEKExecutor

__all__ = ["PARLMAPEKExecutor"]


def __getattr__(name: str) -> Any:
    # Lazy: an actor imports only the handlers.
    if name == "PARLMAPEKExecutor":
        from .mapek_executor import PARLMAPEKExecutor

        return PARLMAPEKExecutor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
