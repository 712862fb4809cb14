"""Soft actor-critic in training: one gradient step of critics, actor and temperature. Imported only where used."""

import math
from collections.abc import Mapping

import numpy as np
import torch

from parlmesh.algorithms.adam import Adam
from parlmesh.algorithms.sac_torch import policy_gradient, soft_targets, squashed_gaussian
from parlmesh.policies import PolicySpec
from parlmesh.policies.torch_threads import choose_threads
from parlmesh.types import Array

from ..replay_trainer import Learnt, Minibatch
from ..shared_step import Share
from ..torch_device import CPU
from .config import SacConfig
from .critics import TwinCritics
from .policy_network import PolicyNetwork
from .torch_minibatch import on_device


class SacModel:
    """The temperature is kept as its logarithm and has its own Adam."""

    # Set when several processes share every gradient step.
    share: Share | None = None

    def __init__(
        self, spec: PolicySpec, config: SacConfig, rng: np.random.Generator, device: torch.device = CPU
    ) -> None:
        choose_threads(config.torch_threads or 1)
        self._config = config
        self._device = device
        self._rng = rng
        self._actor = PolicyNetwork(spec, rng, device)
        self._critics = TwinCritics(spec, rng, device)
        self._learnt = config.temperature == "auto"
        start = config.initial_temperature if config.temperature == "auto" else config.temperature
        self._log_temperature = np.array([math.log(start) if start else -math.inf])
        self._adam = Adam(1, epsilon=1e-8)
        self._dimensions = spec.action.outputs
        self._target_entropy = -float(self._dimensions) if config.target_entropy is None else config.target_entropy

    def noise(self, count: int) -> Array:
        """Noise [2 B, D] for the actions of a step: at the start of its rows, then at their end."""
        return self._rng.standard_normal((2 * count, self._dimensions), dtype=np.float32)

    @torch.no_grad()
    def step(self, minibatch: Minibatch, learning_rate: float, noise: Array | None = None) -> Learnt:
        """Critics first; the actor then asks the updated critics about actions drawn before."""
        count, temperature = len(minibatch.returns), float(np.exp(self._log_temperature[0]))
        features, following, actions, returns, discounts, weights = on_device(minibatch, self._device)
        # One pass of the policy covers both ends of the steps, since it does not change in between.
        outputs = self._actor.forward(torch.cat((features, following)))
        drawn = squashed_gaussian(
            outputs, torch.from_numpy(self.noise(count) if noise is None else noise).to(self._device)
        )
        next_values = self._critics.target(following, drawn.actions[count:])
        targets = soft_targets(returns, discounts, next_values, drawn.log_probs[count:], temperature)
        fit = self._critics.fit(features, actions, targets, weights, learning_rate, self.share)
        now = drawn._replace(
            actions=drawn.actions[:count], log_probs=drawn.log_probs[:count], spread=drawn.spread[:count]
        )
        values, action_gradient = self._critics.lowest(features, now.actions)
        gradient = policy_gradient(outputs[:count], now, action_gradient, temperature)
        log_prob = now.log_probs.mean()
        terms = torch.stack((-log_prob, temperature * log_prob - values.mean()))
        if self.share is not None:
            terms = torch.tensor(self._actor.step(gradient, learning_rate, self.share, terms.tolist()))
        else:
            self._actor.step(gradient, learning_rate)
        self._critics.follow(self._config.target_rate)
        loss, value, error, norm, entropy, policy_loss = torch.stack(
            (fit.loss, fit.value, fit.error, fit.norm, *terms)
        ).tolist()
        if self._learnt:
            # d/d log α of −log α · (log π + target entropy)
            self._adam.step(self._log_temperature, np.array([entropy - self._target_entropy]), learning_rate)
        means = {
            "loss/critics": loss,
            "loss/policy": policy_loss,
            "value/mean": value,
            "value/error": error,
            "policy/entropy": entropy,
            "policy/temperature": temperature,
        }
        return Learnt(means, norm, fit.errors.cpu().numpy())

    def policy_weights(self) -> dict[str, Array]:
        """A copy of the actor's weights."""
        return self._actor.policy_weights()

    def tensors(self) -> dict[str, Array]:
        """Everything that decides the next step but the random state."""
        return {
            **self._actor.tensors(),
            **self._critics.tensors(),
            "temperature": self._log_temperature.copy(),
            "temperature.mean": self._adam.mean.copy(),
            "temperature.square": self._adam.square.copy(),
            "temperature.steps": np.array([self._adam.steps], np.int64),
        }

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
        with torch.no_grad():
            self._actor.restore(tensors)
            self._critics.restore(tensors)
        self._log_temperature = np.array(tensors["temperature"])
        self._adam.mean[...] = tensors["temperature.mean"]
        self._adam.square[...] = tensors["temperature.square"]
        self._adam.steps = int(tensors["temperature.steps"][0])
