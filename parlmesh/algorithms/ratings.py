"""Elo ratings of several players from their games, with confidence intervals: the Bradley–Terry model by maximum
likelihood. A draw is half a win for both. Every other player gets one extra drawn game against the first, so that
players who only won or only lost have finite ratings too.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from parlmesh.types import Array

ELO = 400.0 / math.log(10.0)
_STEPS = 100
_PRECISE = 1e-10
_NINETY_FIVE = 1.959964


@dataclass(frozen=True, slots=True)
class Rating:
    """Elo points above the first player, with a 95 % confidence interval of ± `error`."""

    elo: float
    error: float
    games: int


def ratings(results: Mapping[tuple[int, int], tuple[int, int, int]]) -> dict[int, Rating]:
    """Ratings by player, from (won, drawn, lost) of the first of each pair; the lowest player number has 0 points."""
    players = sorted({player for pair in results for player in pair})
    if not players:
        return {}
    index = {player: place for place, player in enumerate(players)}
    count = len(players)
    score, met = np.zeros((count, count)), np.zeros((count, count))
    for (one, other), (won, drawn, lost) in results.items():
        first, second = index[one], index[other]
        score[first, second] += won + 0.5 * drawn
        score[second, first] += lost + 0.5 * drawn
        met[first, second] += won + drawn + lost
        met[second, first] += won + drawn + lost
    played = met.sum(axis=1)
    score[0, 1:], score[1:, 0] = score[0, 1:] + 0.5, score[1:, 0] + 0.5
    met[0, 1:], met[1:, 0] = met[0, 1:] + 1.0, met[1:, 0] + 1.0
    strength, covariance = _fitted(score, met)
    errors = _NINETY_FIVE * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    return {
        player: Rating(float(ELO * strength[place]), float(ELO * errors[place]), int(played[place]))
        for player, place in index.items()
    }


def _fitted(score: Array, met: Array) -> tuple[Array, Array]:
    """Strengths in natural units, the first fixed at 0, and their covariance, by Newton's method."""
    count = len(score)
    strength = np.zeros(count)
    covariance = np.zeros((count, count))
    if count == 1:
        return strength, covariance
    for _ in range(_STEPS):
        expected = 1.0 / (1.0 + np.exp(strength[None, :] - strength[:, None]))
        gradient = (score - met * expected).sum(axis=1)[1:]
        weight = met * expected * (1.0 - expected)
        information = (np.diag(weight.sum(axis=1)) - weight)[1:, 1:]
        step = np.clip(np.linalg.solve(information, gradient), -2.0, 2.0)
        strength[1:] += step
        if float(np.abs(step).max()) < _PRECISE:
            break
    covariance[1:, 1:] = np.linalg.inv(information)
    return strength, covariance


def score_bounds(won: int, drawn: int, lost: int) -> tuple[float, float]:
    """95 % confidence interval of the expected score of one game, by Wilson; a draw is half a win."""
    games = won + drawn + lost
    if not games:
        return 0.0, 1.0
    share, square = (won + 0.5 * drawn) / games, _NINETY_FIVE**2
    middle = (share + square / (2 * games)) / (1 + square / games)
    spread = _NINETY_FIVE * math.sqrt(share * (1 - share) / games + square / (4 * games * games)) / (1 + square / games)
    return max(0.0, middle - spread), min(1.0, middle + spread)
