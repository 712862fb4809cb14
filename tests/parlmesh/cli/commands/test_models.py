from typing import Any

import pytest

from parlmesh.cli.commands.models import _preferred
from parlmesh.v1.model_service_pb2 import ListModelsRequest, ListModelsResponse, Model


class Listing:
    """A learner's list of models, on one page."""

    def __init__(self, *models: Model) -> None:
        self._models = models

    async def ListModels(self, request: ListModelsRequest, **_: Any) -> ListModelsResponse:
        return ListModelsResponse(models=self._models)


def model(version: int, evaluation: float | None = None, *, promoted: bool = False, run_id: str = "one") -> Model:
    found = Model(run_id=run_id, version=version, promoted=promoted)
    if evaluation is not None:
        found.metadata["evaluation_return"] = evaluation
    return found


@pytest.mark.parametrize(
    ("models", "wanted"),
    [
        ([model(1, 100.0), model(2, 500.0), model(3, 20.0)], 2),
        ([model(1, 500.0), model(2, 500.0)], 2),
        ([model(1, 100.0, promoted=True), model(2, 500.0)], 0),
        ([model(1), model(2)], 0),
        ([model(1, 100.0), model(2, 500.0, run_id="two")], 0),
        ([], 0),
    ],
    ids=["best", "newest of equals", "promoted", "none evaluated", "several runs", "none"],
)
async def test_without_a_version_the_best_evaluated_model_is_taken_unless_one_is_promoted(
    models: list[Model], wanted: int
) -> None:
    stub: Any = Listing(*models)
    assert await _preferred(stub, "one") == wanted
