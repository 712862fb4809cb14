"""Shogi on top of rsshogi, which knows the rules; encoding positions as planes and moves as numbers is ours."""
