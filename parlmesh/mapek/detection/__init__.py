"""Streaming detectors: one value at a time, bounded work per value, no look-ahead, state as plain JSON."""

from .ensemble import DETECTORS, QUIET, VOTERS, Reading, Watch

__all__ = ["DETECTORS", "QUIET", "VOTERS", "Reading", "Watch"]
