"""Families of jobs: the number of sub-tasks and their dependencies. Durations stay hidden."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .sub_agents import SUB_TASKS

MOST_SUB_TASKS = 32
TRIES = 8
"""After this many failures, a sub-task's draws start over."""
_VARIANTS = 64

Split: TypeAlias = Literal["train", "held_out"]
Shape: TypeAlias = Callable[[int, np.random.Generator], Array]


@dataclass(frozen=True)
class Family:
    """Ranges of sizes in training and held out, and a shape that gives the dependencies [size, size] for a size."""

    name: str
    train: tuple[int, int] | None
    held_out: tuple[int, int]
    shape: Shape


@dataclass(frozen=True)
class Job:
    """One job: `needs[i, j]` means that i waits for j; `links[i]` is the length of the chain from i to the end.

    `draws[i, k]` is the sub-task that the k-th try of i works on.
    """

    family: str
    needs: Array
    links: Array
    draws: Array

    @property
    def size(self) -> int:
        """Number of sub-tasks."""
        return len(self.needs)


def _wide(size: int, _: np.random.Generator) -> Array:
    return np.zeros((size, size), np.bool_)


def _chain(size: int, _: np.random.Generator) -> Array:
    return np.eye(size, k=-1, dtype=np.bool_)


def _mixed(size: int, rng: np.random.Generator) -> Array:
    """Three layers; each sub-task needs one or two of the previous layer."""
    layers = np.sort(np.concatenate((np.arange(3), rng.integers(0, 3, size - 3))))
    needs = np.zeros((size, size), np.bool_)
    for index in range(size):
        before = np.flatnonzero(layers == layers[index] - 1)
        if len(before):
            needs[index, rng.choice(before, min(len(before), int(rng.integers(1, 3))), replace=False)] = True
    return needs


def _batch(size: int, _: np.random.Generator) -> Array:
    """Two rounds; the second needs the whole first."""
    first = np.arange(size) < size // 2
    needs: Array = ~first[:, None] & first[None, :]
    return needs


def _map_reduce(size: int, _: np.random.Generator) -> Array:
    """Many sub-tasks, and one that needs all others."""
    needs = np.zeros((size, size), np.bool_)
    needs[-1, :-1] = True
    return needs


FAMILIES = {
    family.name: family
    for family in (
        Family("wide_search", (12, 24), (25, 32), _wide),
        Family("deep_chain", (4, 5), (6, 6), _chain),
        Family("mixed", (8, 14), (15, 18), _mixed),
        Family("batch", (12, 20), (21, 24), _batch),
        # Never seen in training.
        Family("map_reduce", None, (10, 16), _map_reduce),
    )
}
TRAINED = tuple(name for name, family in FAMILIES.items() if family.train is not None)


def check_families(names: Sequence[str], split: Split) -> tuple[str, ...]:
    """The names, after checking that they have jobs for this split; empty = all such families."""
    if split not in ("train", "held_out"):
        raise InvalidInput(f"split must be train or held_out, got {split!r}")
    chosen = tuple(names) or (TRAINED if split == "train" else tuple(FAMILIES))
    for name in chosen:
        if name not in FAMILIES:
            raise InvalidInput(f"families must be among {', '.join(FAMILIES)}, got {name!r}")
        if split == "train" and FAMILIES[name].train is None:
            raise InvalidInput(f"family {name!r} is held out and has no jobs for training")
    return chosen


def draw_job(names: Sequence[str], split: Split, rng: np.random.Generator) -> Job:
    """A job of one of these families."""
    which, share, variant = rng.random(3).tolist()
    family = FAMILIES[names[int(which * len(names))]]
    sizes = family.train if split == "train" else family.held_out
    assert sizes is not None
    size = sizes[0] + int(share * (sizes[1] + 1 - sizes[0]))
    needs, links = _shape(family.name, size, int(variant * _VARIANTS))
    return Job(family.name, needs, links, rng.integers(0, SUB_TASKS, (size, TRIES)))


@lru_cache(maxsize=4_096)
def _shape(family: str, size: int, variant: int) -> tuple[Array, Array]:
    """Dependencies and links; cached, because jobs are drawn all the time."""
    needs = FAMILIES[family].shape(size, np.random.default_rng((size, variant)))
    return needs, links_of(needs)


def links_of(needs: Array) -> Array:
    """Length of the longest chain from each sub-task to the end, including itself."""
    found = np.ones(len(needs), np.int64)
    for _ in range(len(needs)):
        longer = np.maximum(found, 1 + (needs * found[:, None]).max(0, initial=0) * needs.any(0))
        if np.array_equal(longer, found):
            break
        found = longer
    return found
