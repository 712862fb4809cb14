"""Updates of nodes: how they arrive, where they wait, and how they are joined into the next model."""
