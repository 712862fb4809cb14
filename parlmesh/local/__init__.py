"""A whole fleet on this machine: its settings, processes and presets."""
