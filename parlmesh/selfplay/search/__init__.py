"""Looking ahead: trees over the moves of both sides, judged by a network, of many games at once."""

from .looking import Looking, chooser_of, judge_of
from .searcher import Searcher

__all__ = ["Looking", "Searcher", "chooser_of", "judge_of"]
