"""The actor: one process of a node that runs tasks on slots and collects experience."""
