"""MAPE-K: a loop that watches a fleet's nodes, finds the sick one, does one thing there and remembers what worked."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .mapek_executor import PARLMAPEKExecutor

__all__ = ["PARLMAPEKExecutor"]


def __getattr__(name: str) -> Any:
    # An actor imports the handlers alone.
    if name == "PARLMAPEKExecutor":
        from .mapek_executor import PARLMAPEKExecutor

        return PARLMAPEKExecutor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
