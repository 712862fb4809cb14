"""Algorithms as pure functions; each module names its paper."""
