"""A handler: counts words, and can be cancelled between texts.

parlmesh-actor --plugin examples/plugins/word_count.py:plugin
parlmesh tasks submit word_count --param 'texts=["to be or not to be"]' --wait
"""

from collections import Counter
from typing import Any

from parlmesh.errors import InvalidInput
from parlmesh.plugins import Plugin


class WordCount:
    """Runs in a thread of the actor."""

    kind = "word_count"
    runs_in = "thread"

    def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Any) -> dict[str, Any]:
        texts = parameters.get("texts")
        if not isinstance(texts, list):
            # InvalidInput is not retried: the task can never work.
            raise InvalidInput(f"word_count needs texts, a list, got {texts!r}")
        counts: Counter[str] = Counter()
        for text in texts:
            context.check()
            counts.update(str(text).lower().split())
        return {"words": dict(counts.most_common(int(parameters.get("most", 10))))}


plugin = Plugin(handlers={"word_count": WordCount})
