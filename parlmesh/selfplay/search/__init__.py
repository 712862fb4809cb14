"""Search: trees over both sides' moves, evaluated by a network, for many games at once."""

from .gumbel_search import Searcher
from .search_policy import Looking, chooser_of, judge_of

__all__ = ["Looking", "Searcher", "chooser_of", "judge_of"]
