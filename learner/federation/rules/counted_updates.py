"""The end of a round: outliers go, caps are applied, every update that counts gets its weight. Pure.

A sender with several updates in a round (a host of virtual nodes, a fast node of a buffer) is judged as one: by
the median of their norms and by the sum of their samples.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parlmesh.federation.aggregators import clip_factors
from parlmesh.federation.config import FederationConfig
from parlmesh.federation.update_weights import counted_samples, middle, staleness_factors
from parlmesh.types import Array

from .nodes.voters import rows_of_voters, voter_of
from .records import Answer, Counted, RoundRecord, UpdateRecord

_FEWEST_VOTERS = 3


@dataclass(frozen=True, slots=True)
class Closing:
    """The updates that a round counts, and the record of every update."""

    counted: tuple[Counted, ...]
    records: tuple[UpdateRecord, ...]
    metrics: dict[str, float]

    @property
    def voters(self) -> int:
        """Votes among the counted updates."""
        return len({each.voter for each in self.counted})


def close(answers: Sequence[Answer], config: FederationConfig, version: int) -> Closing:
    """Closes a round, in the order of node ids, so that the order of arrival does not matter."""
    ordered = sorted(answers, key=lambda answer: (answer.node_id, answer.nonce))
    if config.privacy.mode == "central" or config.secure.enabled:
        return _close_unseen(ordered, config)
    private = config.privacy.mode == "local"
    records = {
        answer.nonce: UpdateRecord(
            answer.node_id, samples=0 if private else answer.samples, norm=0.0 if private else answer.norm
        )
        for answer in ordered
    }
    norms = _norms_of_voters(ordered, config)
    typical, far = middle(norms), _outliers(ordered, norms, config)
    for answer in ordered:
        if answer.nonce in far:
            record = records[answer.nonce]
            record.refusal = "OUTLIER"
            numbers = "" if private else f": norm {answer.norm:.4g}, the median is {typical:.4g}"
            record.message = f"far longer than most updates of the round{numbers}"
    kept = [answer for answer in ordered if answer.nonce not in far]
    counted = _weigh(kept, config, version, typical, records) if kept else ()
    metrics = {} if private else _metrics(kept, counted)
    return Closing(counted, tuple(records[answer.nonce] for answer in ordered), metrics)


def why_failed(
    record: RoundRecord, closing: Closing | None, config: FederationConfig, abandoned: int, reason: str
) -> str:
    """Says why a federation ends after abandoned rounds; a known reason takes precedence."""
    if reason:
        return f"{abandoned} rounds in a row were abandoned, the last because {reason}"
    votes = config.rule.fewest_voters
    needed = f"{config.fewest_updates} updates" + (f" of {votes} voters" if votes > 1 else "")
    count, voters = (len(closing.counted), closing.voters) if closing is not None else (0, 0)
    had = f"{count}" + (f" of {voters}" if votes > 1 else "")
    refused = Counter(update.refusal for update in record.updates if update.refusal)
    why = ", ".join(f"{number} {word}" for word, number in sorted(refused.items()))
    text = f"{abandoned} rounds in a row had fewer than {needed}, the last {had}"
    return text + (f" (left out: {why})" if why else "")


def _close_unseen(ordered: Sequence[Answer], config: FederationConfig) -> Closing:
    """With central privacy, an update affects nothing but its own clipped part of the mean, and is not shown.

    In a secure round, the nodes' weights are unknown too.
    """
    notes = ["MASKED"] if config.secure.enabled else []
    weight = 1.0 / max(1, len(ordered))
    shown = weight if config.privacy.mode != "none" else 0.0
    counted = tuple(
        Counted(each.node_id, each.slot, weight, each.norm, voter=voter_of(each.node_id, config)) for each in ordered
    )
    records = (UpdateRecord(each.node_id, node_weight=shown, notes=list(notes)) for each in ordered)
    return Closing(counted, tuple(records), {})


def _norms_of_voters(answers: Sequence[Answer], config: FederationConfig) -> list[float]:
    rows = rows_of_voters([voter_of(answer.node_id, config) for answer in answers])
    return [float(np.median([answers[row].norm for row in members])) for members in rows.values()]


def _outliers(answers: Sequence[Answer], voters: Sequence[float], config: FederationConfig) -> set[str]:
    """Nonces of updates far longer than those of most voters; with two voters, it is unknown which one lies."""
    factor = config.gate.outlier_factor
    if not factor or len(voters) < _FEWEST_VOTERS:
        return set()
    # When no node's model moves, the first that moves must not become an outlier.
    longest = factor * max(middle(voters), 1e-12)
    return {answer.nonce for answer in answers if answer.norm > longest}


def _believed(kept: Sequence[Answer], config: FederationConfig) -> Array:
    """Samples that count: a voter is capped as a whole, and its updates share the capped number."""
    gate = config.gate
    if config.privacy.mode == "local":
        # A node's sample count carries no noise, so it is not used.
        own = np.ones(len(kept))
    else:
        own = counted_samples([answer.samples for answer in kept], max_samples=gate.max_samples)
    rows = rows_of_voters([voter_of(answer.node_id, config) for answer in kept])
    sums = [float(own[members].sum()) for members in rows.values()]
    if gate.weight_cap_factor:
        limit = max(1.0, gate.weight_cap_factor * middle(sums))
        for members, total in zip(rows.values(), sums, strict=True):
            if total > limit:
                own[members] *= limit / total
    return own


def _weigh(
    kept: Sequence[Answer], config: FederationConfig, version: int, typical: float, records: dict[str, UpdateRecord]
) -> tuple[Counted, ...]:
    samples = _believed(kept, config)
    scales = np.ones(len(kept))
    if config.rule.name == "mean" and config.gate.clip_factor:
        scales = clip_factors([answer.norm for answer in kept], config.gate.clip_factor * typical)
    weights = samples
    if config.buffer_size:
        weights = weights * staleness_factors([version - answer.base_version for answer in kept])
    weights = weights / weights.sum()
    for answer, believed, weight, scale in zip(kept, samples, weights, scales, strict=True):
        record = records[answer.nonce]
        record.node_weight = float(weight)
        if config.privacy.mode == "none":
            record.counted_samples = int(believed)
            if believed < answer.samples:
                record.notes.append("SAMPLES_CAPPED")
        if scale < 1.0:
            record.notes.append("NORM_CLIPPED")
    return tuple(
        Counted(answer.node_id, answer.slot, float(weight), answer.norm, float(scale), voter_of(answer.node_id, config))
        for answer, weight, scale in zip(kept, weights, scales, strict=True)
    )


def _metrics(kept: Sequence[Answer], counted: Sequence[Counted]) -> dict[str, float]:
    """Means over the nodes that report a metric, by weight."""
    found: dict[str, float] = {}
    for name in sorted({name for answer in kept for name in answer.metrics}):
        rows = [(c.weight, a.metrics[name]) for a, c in zip(kept, counted, strict=True) if name in a.metrics]
        found[f"fit/{name}"] = sum(w * value for w, value in rows) / sum(w for w, _ in rows)
    return found
