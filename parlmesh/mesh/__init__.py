"""Routes through a mesh, the effect of failures on them, and traffic. Uses the client and a plug-in."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .optimizer import PARLMeshOptimizer as PARLMeshOptimizer

__all__ = ["PARLMeshOptimizer"]


def __getattr__(name: str) -> Any:
    # Lazy: reading a topology does not need the client.
    if name == "PARLMeshOptimizer":
        from .optimizer import PARLMeshOptimizer

        return PARLMeshOptimizer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
