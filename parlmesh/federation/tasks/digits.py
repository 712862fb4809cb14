"""Handwritten digits (scikit-learn's 1,797 images of 8 x 8), split among nodes evenly or unevenly."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from pydantic import Field

from parlmesh.config import Config
from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from ..data_partition import partition
from ..learning_task import Evaluated, FirstModel, Fitted, Part
from .classifier import AdamW, Classifier
from .settings import parse_settings

_TEST_SHARE = 0.2
_PIXELS, _CLASSES = 64, 10


class LocalTrainingSettings(Config):
    """Settings of gradient descent on a node."""

    epochs: int = Field(default=2, ge=1, le=1_000)
    """Passes over the node's data per round."""
    batch: int = Field(default=32, ge=0)
    """Samples per gradient step; 0 = all."""
    learning_rate: float = Field(default=0.1, gt=0.0, le=100.0)
    """Step size."""
    proximal: float = Field(default=0.0, ge=0.0)
    """Pull towards the round's model (FedProx's mu); 0 = none."""
    optimiser: Literal["sgd", "adamw"] = "sgd"
    """sgd is plain gradient descent; adamw starts with fresh moments in every round."""
    weight_decay: float = Field(default=0.0, ge=0.0, le=1.0)
    """Weight decay of adamw, multiplied by the step size."""
    steps: int = Field(default=0, ge=0, le=1_000_000)
    """Gradient steps per round, regardless of the node's samples; 0 = use `epochs`."""
    seconds: float = Field(default=0.0, ge=0.0, le=86_400.0)
    """A slow node stops after this time, with at least one step; 0 = never. Makes rounds not reproducible."""


class DigitsSettings(LocalTrainingSettings):
    """Settings of the nodes' data."""

    nodes: int = Field(default=10, ge=1, le=700)
    """Number of parts that the images are split into; node k gets the k-th."""
    partition: Literal["iid", "dirichlet", "by_label"] = "dirichlet"
    """How the images are split."""
    alpha: float = Field(default=0.3, gt=0.0)
    """Concentration of the Dirichlet draw; smaller values make nodes differ more."""
    labels_per_node: int = Field(default=2, ge=1, le=10)
    """Shards per node when split by label."""
    partition_seed: int = Field(default=0, ge=0)
    """Seed of the split."""
    hidden: tuple[int, ...] = (128,)
    """Hidden layers."""


class Digits:
    """A perceptron on the pixels."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings_ = parse_settings(DigitsSettings, "digits", settings)
        self._sizes = (_PIXELS, *settings_.hidden, _CLASSES)
        train, self._train_labels, test, self._test_labels = _images()
        self._train, self._test = train, test
        self._parts = partition(
            self._train_labels,
            settings_.nodes,
            settings_.partition,
            settings_.partition_seed,
            alpha=settings_.alpha,
            labels_per_node=settings_.labels_per_node,
        )
        self._test_parts = np.array_split(np.arange(len(test)), settings_.nodes)

    def first(self, seed: int) -> FirstModel:
        """Weights drawn by the seed."""
        return FirstModel(Classifier(self._sizes).first(np.random.default_rng(seed)))

    def fit(self, tensors: Mapping[str, Array], part: Part) -> Fitted:
        """Trains on the node's images."""
        rows = self._parts[(part.number - 1) % self._settings.nodes]
        return fit_classifier(self._sizes, self._settings, tensors, self._train[rows], self._train_labels[rows], part)

    def evaluate(self, tensors: Mapping[str, Array], part: Part) -> Evaluated:
        """Evaluates on the node's part of the held-out images."""
        rows = self._test_parts[(part.number - 1) % self._settings.nodes]
        return evaluate_classifier(self._sizes, tensors, self._test[rows], self._test_labels[rows])


def fit_classifier(
    sizes: tuple[int, ...],
    settings: LocalTrainingSettings,
    tensors: Mapping[str, Array],
    inputs: Array,
    labels: Array,
    part: Part,
) -> Fitted:
    """Trains a classifier locally; deterministic for a model and part unless `seconds` is set."""
    model = Classifier(sizes)
    model.load(tensors)
    loss = model.train(
        inputs,
        labels,
        epochs=settings.epochs,
        batch=settings.batch,
        learning_rate=settings.learning_rate,
        proximal=settings.proximal,
        adamw=AdamW(settings.learning_rate, settings.weight_decay) if settings.optimiser == "adamw" else None,
        steps=settings.steps,
        seconds=settings.seconds,
        rng=np.random.default_rng([part.seed, part.number, part.round]),
        check=part.check,
    )
    return Fitted(model.tensors(), len(labels), {"loss": loss})


def evaluate_classifier(
    sizes: tuple[int, ...], tensors: Mapping[str, Array], inputs: Array, labels: Array
) -> Evaluated:
    """Loss and accuracy."""
    if not len(labels):
        return Evaluated(0, {})
    model = Classifier(sizes)
    model.load(tensors)
    loss, accuracy = model.evaluate(inputs, labels)
    return Evaluated(len(labels), {"loss": loss, "accuracy": accuracy})


@lru_cache(maxsize=1)
def _images() -> tuple[Array, Array, Array, Array]:
    """Training images and labels, then those for evaluation; the same split everywhere."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise InvalidInput(
            "digits needs the package scikit-learn: pip install parlmesh[federation]", reason="MISSING_PACKAGE"
        ) from error
    images, labels = load_digits(return_X_y=True)
    pixels = (images / 8.0 - 1.0).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(labels))
    split = int(len(labels) * (1.0 - _TEST_SHARE))
    train, test = order[:split], order[split:]
    return pixels[train], labels[train].astype(np.int64), pixels[test], labels[test].astype(np.int64)
