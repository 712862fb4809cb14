"""A whole fleet on this machine: its settings, its processes, and the presets that it may start from."""
