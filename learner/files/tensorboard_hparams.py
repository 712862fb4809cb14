"""A run's settings as TensorBoard's HPARAMS tab reads them, so that runs can be compared."""

from collections.abc import Iterator, Mapping
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.summary_v2 import hparams_pb

_ALGORITHMS = ("ppo", "dqn", "sac", "td3", "q_learning", "custom")


def hparams_summary(training: Mapping[str, Any], run_id: str) -> Summary:
    """Settings of the algorithm in use and those that every run has."""
    unused = {name for name in _ALGORITHMS if name != training.get("algorithm")} - {"custom"}
    used = {name: value for name, value in training.items() if name not in unused}
    summary: Summary = hparams_pb(dict(_flat(used)), trial_id=run_id)
    return summary


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, bool | float | str]]:
    """Joins keys by dots; values that are not numbers become text."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, bool | int | float):
            yield f"{prefix}{name}", value
        else:
            yield f"{prefix}{name}", "null" if value is None else str(value)
