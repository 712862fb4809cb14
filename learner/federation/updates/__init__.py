"""Updates of nodes: how they come in, where they wait, and how they are joined into the next model."""
