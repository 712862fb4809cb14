"""Shogi on rsshogi, which knows the rules; positions as planes and moves as numbers are ours."""
