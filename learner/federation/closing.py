"""The end of a round: outliers go, caps are applied, every update that counts gets its weight. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parlmesh.federation.config import FederationConfig
from parlmesh.federation.weights import counted_samples, norm_outliers, staleness_factors

from .records import Answer, Counted, UpdateRecord


@dataclass(frozen=True, slots=True)
class Closing:
    """What a round is made of, and what is said of every update."""

    counted: tuple[Counted, ...]
    records: tuple[UpdateRecord, ...]
    metrics: dict[str, float]


def close(answers: Sequence[Answer], config: FederationConfig, version: int) -> Closing:
    """In the order of node ids, so that nothing depends on who came first."""
    ordered = sorted(answers, key=lambda answer: (answer.node_id, answer.nonce))
    outliers = norm_outliers([answer.norm for answer in ordered], config.gate.outlier_factor)
    median = float(np.median([answer.norm for answer in ordered])) if ordered else 0.0
    kept = [answer for answer, outlier in zip(ordered, outliers, strict=True) if not outlier]
    records = {
        answer.nonce: UpdateRecord(answer.node_id, samples=answer.samples, norm=answer.norm) for answer in ordered
    }
    for answer, outlier in zip(ordered, outliers, strict=True):
        if outlier:
            record = records[answer.nonce]
            record.refusal = "OUTLIER"
            record.message = f"norm {answer.norm:.4g} is far from the round's median {median:.4g}"
    counted = _weigh(kept, config, version, records) if kept else ()
    return Closing(counted, tuple(records[answer.nonce] for answer in ordered), _metrics(kept, counted))


def _weigh(
    kept: Sequence[Answer], config: FederationConfig, version: int, records: dict[str, UpdateRecord]
) -> tuple[Counted, ...]:
    gate = config.gate
    samples = counted_samples(
        [answer.samples for answer in kept], max_samples=gate.max_samples, cap_factor=gate.weight_cap_factor
    )
    for answer, believed in zip(kept, samples, strict=True):
        record = records[answer.nonce]
        record.counted_samples = int(believed)
        if believed < answer.samples:
            record.notes.append("SAMPLES_CAPPED")
        if config.privacy.mode == "central" and answer.norm > config.privacy.clip_norm:
            record.notes.append("NORM_CLIPPED")
    # The guarantee of privacy is for a mean in which every node counts the same.
    weights = np.ones(len(kept)) if config.privacy.mode == "central" else samples
    if config.buffer_size:
        weights = weights * staleness_factors([version - answer.base_version for answer in kept])
    weights = weights / weights.sum()
    for answer, weight in zip(kept, weights, strict=True):
        records[answer.nonce].node_weight = float(weight)
    return tuple(
        Counted(answer.node_id, answer.slot, float(weight), answer.norm)
        for answer, weight in zip(kept, weights, strict=True)
    )


def _metrics(kept: Sequence[Answer], counted: Sequence[Counted]) -> dict[str, float]:
    """Means over the nodes that report a metric, by weight."""
    found: dict[str, float] = {}
    for name in sorted({name for answer in kept for name in answer.metrics}):
        rows = [(c.weight, a.metrics[name]) for a, c in zip(kept, counted, strict=True) if name in a.metrics]
        found[f"fit/{name}"] = sum(w * value for w, value in rows) / sum(w for w, _ in rows)
    return found
