"""A run's settings as TensorBoard's HPARAMS tab reads them, so that runs can be compared."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

_TAG = "_hparams_/session_start_info"
_ALGORITHMS = ("ppo", "dqn", "sac", "td3", "q_learning", "custom")


def hparams_summary(training: Mapping[str, Any], run_id: str) -> Summary:
    """Settings of the algorithm in use and those that every run has."""
    unused = {name for name in _ALGORITHMS if name != training.get("algorithm")} - {"custom"}
    used = {name: value for name, value in training.items() if name not in unused}
    info = SessionStartInfo(group_name=run_id, start_time_secs=time.time())
    for name, value in sorted(_flat(used)):
        if isinstance(value, bool):
            info.hparams[name].bool_value = value
        elif isinstance(value, str):
            info.hparams[name].string_value = value
        else:
            info.hparams[name].number_value = value
    content = HParamsPluginData(session_start_info=info).SerializeToString()
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="hparams", content=content))
    # The tab reads the metadata; a value without a tensor would be skipped.
    nothing = TensorProto(dtype=DT_FLOAT, tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=0)]))
    return Summary(value=[Summary.Value(tag=_TAG, metadata=metadata, tensor=nothing)])


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, bool | float | str]]:
    """Joins keys by dots; values that are not numbers become text."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, bool | int | float):
            yield f"{prefix}{name}", value
        else:
            yield f"{prefix}{name}", "null" if value is None else str(value)
