"""The phases of a federation, and how long each waits. Pure."""

import enum

from parlmesh.federation.config import FederationConfig


class Phase(enum.StrEnum):
    """The event that the federation waits for."""

    WAITING = "waiting"
    PREPARING = "preparing"
    COLLECTING = "collecting"
    UNMASKING = "unmasking"
    AGGREGATING = "aggregating"
    EVALUATING = "evaluating"
    ENDED = "ended"


def wait_seconds(phase: Phase, config: FederationConfig) -> float | None:
    """The longest a phase waits for nodes; None when it waits for none."""
    match phase:
        case Phase.WAITING:
            return config.wait_seconds
        case Phase.PREPARING | Phase.UNMASKING:
            return config.secure.step_seconds
        case Phase.COLLECTING:
            return config.round_seconds
        case Phase.EVALUATING:
            return config.evaluation.seconds
        case _:
            return None
