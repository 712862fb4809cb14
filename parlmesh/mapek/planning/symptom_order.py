"""Chooses which of a node's symptoms is treated first."""

from collections.abc import Mapping

from ..types import Symptom


def most_urgent(symptoms: Mapping[str, Symptom]) -> list[Symptom]:
    """Critical symptoms first, then those furthest past their limit."""

    def key(symptom: Symptom) -> tuple[bool, float, str]:
        excess = abs(symptom.value - symptom.limit) / max(abs(symptom.limit), 1e-9)
        return symptom.severity != "critical", -excess, symptom.name

    return sorted(symptoms.values(), key=key)
