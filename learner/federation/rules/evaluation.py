"""The nodes' reports about one version."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from parlmesh.federation.config import FederationConfig

from .events import Evaluated


@dataclass(slots=True)
class Evaluation:
    """The nodes that have yet to evaluate, and the results of the others."""

    _waiting: set[str] = field(default_factory=set)
    found: list[Evaluated] = field(default_factory=list)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Nodes that have not answered yet."""
        return tuple(sorted(self._waiting))

    @property
    def over(self) -> bool:
        """Whether all have answered."""
        return not self._waiting

    def take(self, event: Evaluated) -> bool:
        """False when the node was not asked or has answered before."""
        if event.node_id not in self._waiting:
            return False
        self._waiting.discard(event.node_id)
        if not event.bad:
            self.found.append(event)
        return True

    def metrics(self) -> dict[str, float]:
        """Means weighted by samples, over the nodes that could evaluate."""
        good = sorted((each for each in self.found if each.samples > 0), key=lambda each: each.node_id)
        shown: dict[str, float] = {}
        for name in sorted({name for each in good for name in each.metrics}):
            rows = [(each.samples, each.metrics[name]) for each in good if name in each.metrics]
            total = sum(samples for samples, _ in rows)
            shown[f"evaluation/{name}"] = sum(samples * value for samples, value in rows) / total
        shown["evaluation/nodes"] = float(len(good))
        return shown


def evaluators(nodes: Sequence[str], config: FederationConfig, aggregated: int, *, last: bool) -> set[str]:
    """Nodes that evaluate the `aggregated`th version; the last one is always evaluated, if any is."""
    rule = config.evaluation
    private = config.privacy.mode != "none" and not rule.on_public_data
    if private or not rule.interval_rounds or not (last or aggregated % rule.interval_rounds == 0):
        return set()
    return set(nodes[: rule.nodes] if rule.nodes else nodes)
