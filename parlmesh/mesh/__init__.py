"""Routes through a mesh, what failures do to them, and where the traffic goes. Stands on the client and a plug-in."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .optimizer import PARLMeshOptimizer as PARLMeshOptimizer

__all__ = ["PARLMeshOptimizer"]


def __getattr__(name: str) -> Any:
    # Whoever reads a topology needs no client.
    if name == "PARLMeshOptimizer":
        from .optimizer import PARLMeshOptimizer

        return PARLMeshOptimizer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
