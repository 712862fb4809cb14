"""Looking ahead: trees over the moves of both sides, judged by a network, of many games at once."""

from .gumbel_search import Searcher
from .search_policy import Looking, chooser_of, judge_of

__all__ = ["Looking", "Searcher", "chooser_of", "judge_of"]
