"""Distributions over actions in numpy: sampling for actors, log-probabilities with gradients for the learner."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from parlmesh.types import ActionSpec, Array

# Far below any logit of a network, but finite: 0 · MASKED is 0, not nan.
MASKED = np.float32(-1e9)
LOG_TWO_PI = float(np.log(2.0 * np.pi))


class Likelihood(NamedTuple):
    """Log-probability and entropy of B given actions, both [B]."""

    log_prob: Array
    entropy: Array


class Sampler(Protocol):
    """From a network's outputs [B, outputs] to actions."""

    def sample(self, outputs: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Actions [B, ...] and their log-probabilities [B]."""

    def mode(self, outputs: Array) -> Array:
        """The likeliest actions [B, ...]."""


class Distribution(Sampler, Protocol):
    """A sampler that also computes likelihoods and their gradients."""

    def likelihood(self, outputs: Array, actions: Array) -> Likelihood:
        """Likelihood of given actions; stores what `gradient` needs."""

    def gradient(self, log_prob_gradient: Array, entropy_gradient: float) -> Array:
        """d loss / d outputs of the last `likelihood`, for d loss / d log_prob [B] and d loss / d each entropy."""


class Categorical:
    """One choice among several."""

    def sample(self, outputs: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """By inverting the cumulative distribution: one random number per row."""
        outputs = outputs - outputs.max(axis=1, keepdims=True)
        cumulative = np.exp(outputs)
        np.cumsum(cumulative, axis=1, out=cumulative)
        total = cumulative[:, -1]
        threshold = rng.random(len(outputs), dtype=np.float32) * total
        # Without the last column, so that rounding cannot push an action past the end.
        action = (cumulative[:, :-1] <= threshold[:, None]).sum(axis=1)
        log_prob = outputs[np.arange(len(outputs)), action] - np.log(total)
        return action, log_prob

    def mode(self, outputs: Array) -> Array:
        """The first of the likeliest."""
        action: Array = outputs.argmax(axis=1)
        return action

    def likelihood(self, outputs: Array, actions: Array) -> Likelihood:
        """log softmax at the action."""
        self._rows, self._actions = np.arange(len(actions)), actions
        log_probs = outputs - outputs.max(axis=1, keepdims=True)
        log_probs -= np.log(np.exp(log_probs).sum(axis=1, keepdims=True))
        self._log_probs, self._probs = log_probs, np.exp(log_probs)
        self._entropy = -(self._probs * log_probs).sum(axis=1)
        return Likelihood(log_probs[self._rows, actions], self._entropy)

    def gradient(self, log_prob_gradient: Array, entropy_gradient: float) -> Array:
        """g · (onehot − p) for the log-probability, −h · p · (log p + H) for the entropy."""
        flowing: Array = self._probs * -log_prob_gradient[:, None]
        flowing[self._rows, self._actions] += log_prob_gradient
        if entropy_gradient:
            flowing -= entropy_gradient * self._probs * (self._log_probs + self._entropy[:, None])
        return flowing


class MultiCategorical:
    """Several independent choices; their logits are concatenated."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._splits = np.cumsum(sizes)[:-1]
        self._parts = [Categorical() for _ in sizes]

    def sample(self, outputs: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """The log-probability of a vector is the sum over its choices."""
        drawn = [part.sample(logits, rng) for part, logits in self._each(outputs)]
        return np.stack([action for action, _ in drawn], axis=1), np.sum([log_prob for _, log_prob in drawn], axis=0)

    def mode(self, outputs: Array) -> Array:
        """The likeliest of every choice."""
        return np.stack([part.mode(logits) for part, logits in self._each(outputs)], axis=1)

    def likelihood(self, outputs: Array, actions: Array) -> Likelihood:
        """Sums over the choices."""
        found = [part.likelihood(logits, actions[:, index]) for index, (part, logits) in enumerate(self._each(outputs))]
        log_prob, entropy = (np.sum(column, axis=0) for column in zip(*found, strict=True))
        return Likelihood(log_prob, entropy)

    def gradient(self, log_prob_gradient: Array, entropy_gradient: float) -> Array:
        """Concatenates the gradients, since each choice has its own logits."""
        return np.concatenate([part.gradient(log_prob_gradient, entropy_gradient) for part in self._parts], axis=1)

    def _each(self, outputs: Array) -> list[tuple[Categorical, Array]]:
        return list(zip(self._parts, np.split(outputs, self._splits, axis=1), strict=True))


class Gaussian:
    """A normal distribution per dimension; the network gives the means, `log_std` [D] is shared by all observations.

    An action is the unbounded sample; `squash` maps it into the environment's bounds. The density is that before
    squashing: the factor between the two cancels in every ratio of probabilities.
    """

    def __init__(self, log_std: Array, log_std_gradient: Array | None = None) -> None:
        self._log_std = log_std
        self._log_std_gradient = np.zeros_like(log_std) if log_std_gradient is None else log_std_gradient

    def sample(self, outputs: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """mean + std · noise."""
        noise = rng.standard_normal(outputs.shape, dtype=np.float32)
        return outputs + noise * np.exp(self._log_std), self._log_density(noise)

    def mode(self, outputs: Array) -> Array:
        """The mean."""
        return outputs

    def likelihood(self, outputs: Array, actions: Array) -> Likelihood:
        """The entropy is the same for every row."""
        self._inverse_std = np.exp(-self._log_std)
        self._noise = (actions - outputs) * self._inverse_std
        entropy = float(self._log_std.sum()) + 0.5 * self._log_std.size * (1.0 + LOG_TWO_PI)
        return Likelihood(self._log_density(self._noise), np.full(len(actions), entropy, np.float32))

    def gradient(self, log_prob_gradient: Array, entropy_gradient: float) -> Array:
        """Also writes d loss / d log_std: Σ g · (noise² − 1) + B · h."""
        weighted: Array = log_prob_gradient[:, None] * self._noise
        self._log_std_gradient[...] = (weighted * self._noise).sum(axis=0) - log_prob_gradient.sum()
        self._log_std_gradient += entropy_gradient * len(log_prob_gradient)
        weighted *= self._inverse_std
        return weighted

    def _log_density(self, noise: Array) -> Array:
        density: Array = -0.5 * (noise * noise).sum(axis=1)
        density -= float(self._log_std.sum()) + 0.5 * self._log_std.size * LOG_TWO_PI
        return density


def distribution_for(action: ActionSpec, log_std: Array, log_std_gradient: Array | None = None) -> Distribution:
    """The distribution over an environment's actions; `log_std` is empty unless they are continuous."""
    if action.kind == "continuous":
        return Gaussian(log_std, log_std_gradient)
    return Categorical() if action.kind == "discrete" else MultiCategorical(action.sizes)


def squash(action: Array, low: Array, high: Array) -> Array:
    """Maps any number into the bounds, by tanh."""
    squashed: Array = low + (np.tanh(action) + 1.0) * 0.5 * (high - low)
    return squashed


def sample_allowed(outputs: Array, mask: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Like Categorical over masked outputs, but computes only the allowed choices, a few dozen of thousands. Every row
    must allow at least one."""
    flat = np.flatnonzero(mask)
    counts = np.count_nonzero(mask, axis=1)
    ends = np.cumsum(counts)
    starts = ends - counts
    logits = outputs.reshape(-1)[flat].astype(np.float64)
    logits -= np.repeat(np.maximum.reduceat(logits, starts), counts)
    cumulative = np.cumsum(np.exp(logits))
    before = np.where(starts > 0, cumulative[starts - 1], 0.0)
    total = cumulative[ends - 1] - before
    place = np.searchsorted(cumulative, before + rng.random(len(outputs)) * total, side="right")
    # Rounding must not push a choice into the next row.
    place = np.clip(place, starts, ends - 1)
    action = flat[place] - np.arange(len(outputs)) * outputs.shape[1]
    return action, (logits[place] - np.log(total)).astype(np.float32)


def masked(outputs: Array, mask: Array) -> Array:
    """Outputs under which a forbidden action has probability 0."""
    return np.where(mask, outputs, MASKED)
