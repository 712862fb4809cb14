"""The loop's decisions: whether it may act on a node now, and which action it takes. Does no I/O."""
