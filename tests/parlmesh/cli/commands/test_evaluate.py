"""What `parlmesh evaluate` checks before it plays an episode."""

from pathlib import Path

import pytest

import parlmesh.api.episodes
from parlmesh.api.policy import TrainedPolicy
from parlmesh.cli.commands.evaluate import evaluate
from parlmesh.errors import FleetError


@pytest.mark.parametrize(
    ("recording", "sentence"),
    [
        ({"video": Path("out.avi")}, "out.avi must end in .gif or .mp4"),
        ({"video": Path("nowhere/out.gif")}, "there is no folder nowhere for out.gif"),
        ({"dataset": "short"}, "is not a data set name|pip install"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_the_episodes_are_played(
    recording: dict[str, object], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parlmesh.api.policy, "load_policy", lambda *_, **__: TrainedPolicy.__new__(TrainedPolicy))
    monkeypatch.setattr(parlmesh.api.episodes, "evaluate_policy", lambda *_, **__: pytest.fail("it was played"))
    with pytest.raises(FleetError, match=sentence):
        evaluate(Path("one.safetensors"), **recording)  # type: ignore[arg-type]
