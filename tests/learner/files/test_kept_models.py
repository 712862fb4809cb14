import json

import pytest

from learner.files import kept_models
from learner.files.kept_models import ModelFolder
from parlmesh.durable_files import replace_file
from parlmesh.errors import FailedPrecondition, NotFound


@pytest.fixture
def models(tmp_path):
    return ModelFolder(tmp_path / "models", "r", kept=3)


def versions(models):
    return [model.version for model in models.newest_first()]


def add(models, *wanted, **metadata):
    for version in wanted:
        models.add(version, b"%d" % version, metadata)


def test_a_model_comes_back_as_it_was_kept(models):
    add(models, 7, environment="CartPole-v1", steps=10)
    model = models.get(7)
    assert (model.run_id, model.version, model.size_bytes) == ("r", 7, 1)
    assert model.metadata == {"environment": "CartPole-v1", "steps": 10}
    assert models.blob(model) == b"7"


def test_the_newest_the_best_and_the_promoted_are_kept(models):
    add(models, 1, evaluation_return=5.0)
    add(models, 2, evaluation_return=1.0)
    models.promote(2)
    add(models, 3, 4, 5, 6, evaluation_return=2.0)
    assert versions(models) == [6, 5, 4, 2, 1]
    add(models, 7, evaluation_return=9.0)
    assert versions(models) == [7, 6, 5, 2]


def test_without_a_version_the_promoted_one_is_meant_or_the_newest(models):
    with pytest.raises(NotFound, match="run 'r' has no model yet"):
        models.get()
    add(models, 1, 2, 3)
    assert models.get().version == 3
    models.promote(2)
    assert models.get().version == 2
    models.promote(1)
    assert (models.get().version, models.promoted) == (1, 1)


def test_an_unknown_version_is_refused_with_those_there_are(models):
    add(models, 1, 2)
    for ask in (models.get, models.promote, models.delete):
        with pytest.raises(NotFound, match="run 'r' has no model of version 9; it has: 2, 1"):
            ask(9)
    assert models.promoted == 0


def test_the_promoted_model_cannot_be_deleted_and_others_can(models):
    add(models, 1, 2)
    models.promote(1)
    models.delete(2)
    assert versions(models) == [1]
    with pytest.raises(FailedPrecondition, match="model 1 of run 'r' is promoted; promote another one first"):
        models.delete(1)
    assert versions(models) == [1]


def test_a_model_whose_file_was_changed_is_not_given_out(models, tmp_path):
    add(models, 1)
    (tmp_path / "models" / "v00000001.safetensors").write_bytes(b"evil")
    with pytest.raises(FailedPrecondition, match="was changed since it was written"):
        models.blob(models.get(1))


@pytest.mark.parametrize("damage", ["{", json.dumps({"version": 1})])
def test_a_model_that_cannot_be_read_is_left_out(models, tmp_path, damage, caplog):
    add(models, 1, 2)
    (tmp_path / "models" / "v00000002.json").write_text(damage)
    assert versions(models) == [1]
    assert models.get().version == 1
    assert "model_damaged" in caplog.text


def test_a_crash_between_the_two_files_of_a_model_leaves_none(models, monkeypatch):
    def crash(path, data):
        if path.suffix == ".json":
            raise OSError("power went out")
        replace_file(path, data)

    monkeypatch.setattr(kept_models, "replace_file", crash)
    with pytest.raises(OSError, match="power"):
        add(models, 1)
    assert versions(models) == []


def test_a_damaged_promotion_promotes_nothing(models, tmp_path):
    add(models, 1, 2)
    models.promote(1)
    (tmp_path / "models" / "promoted.json").write_text("x")
    assert (models.promoted, models.get().version) == (0, 2)
