"""A fleet as child processes of a command: its settings, its processes, its session."""
