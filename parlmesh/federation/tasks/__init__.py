"""Built-in learning tasks. Each imports its dependencies when it is made."""
