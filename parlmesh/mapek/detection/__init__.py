"""Streaming detectors: one value at a time, bounded work for each, no look-ahead, states that are plain JSON."""

from .ensemble import DETECTORS, QUIET, VOTERS, Reading, Watch

__all__ = ["DETECTORS", "QUIET", "VOTERS", "Reading", "Watch"]
