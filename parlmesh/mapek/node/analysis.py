"""Derives a node's symptoms from one reading: thresholds, then detectors. Pure; states are passed in and returned."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..config import ANOMALY, DetectionConfig, ThresholdConfig, matches
from ..detection import Watch
from ..types import Symptom
from .thresholds import next_state

MOST_METRICS = 1000


def analyse(
    metrics: Mapping[str, float],
    thresholds: Sequence[ThresholdConfig],
    detection: DetectionConfig,
    states: Mapping[str, Any],
    time: float,
) -> tuple[dict[str, Any], list[Symptom], dict[str, float]]:
    """The changed states, the current symptoms, and the detectors' scores by metric.

    A missing metric changes no state: an active symptom is still active at the next reading.
    """
    changed: dict[str, Any] = {}
    symptoms: dict[str, Symptom] = {}
    scores: dict[str, float] = {}
    for metric, value in metrics.items():
        for threshold in thresholds:
            if matches(threshold.metric, metric):
                name = f"threshold {metric}"
                changed[name], symptom = next_state(threshold, metric, value, states.get(name, {}))
                if symptom is not None:
                    symptoms[metric] = symptom
                break
        if any(matches(pattern, metric) for pattern in detection.metrics):
            name = f"detector {metric}"
            watch = Watch.restored(
                states.get(name),
                voters=detection.voters,
                probation=detection.probation,
                threshold=detection.threshold,
                quiet=detection.quiet,
            )
            reading = watch.update(time, value)
            changed[name], scores[metric] = watch.state(), reading.score
            if reading.alarm and metric not in symptoms:
                symptoms[f"{ANOMALY}.{metric}"] = Symptom(
                    name=f"{ANOMALY}.{metric}",
                    metric=metric,
                    value=value,
                    limit=detection.threshold,
                    severity=detection.severity,
                    why=f"{metric} is {value:.4g}, unusual here: score {reading.score:.3f} by {reading.voters}",
                )
    return changed, list(symptoms.values()), scores
