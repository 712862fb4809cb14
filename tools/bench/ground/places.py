"""Paths in the repository."""

from pathlib import Path

BENCH = Path(__file__).resolve().parents[1]
ROOT = BENCH.parents[1]
PEERS = BENCH / "peers"
OURS = BENCH / "ours"
