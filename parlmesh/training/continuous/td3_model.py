"""TD3 in training: gradient steps of the critics, and less often of the actor. Imported only where used."""

from collections.abc import Mapping

import numpy as np
import torch

from parlmesh.algorithms.td3_torch import policy_gradient, smoothed, twin_targets
from parlmesh.policies import PolicySpec
from parlmesh.policies.torch_threads import choose_threads
from parlmesh.types import Array

from ..replay_trainer import Learnt, Minibatch
from ..torch_device import CPU
from .config import Td3Config
from .critics import TwinCritics
from .policy_network import PolicyNetwork
from .torch_minibatch import on_device


class Td3Model:
    """The actor has a target copy too."""

    def __init__(
        self, spec: PolicySpec, config: Td3Config, rng: np.random.Generator, device: torch.device = CPU
    ) -> None:
        choose_threads(config.torch_threads or 1)
        self._config = config
        self._device = device
        self._rng = rng
        self._actor = PolicyNetwork(spec, rng, device)
        self._target = PolicyNetwork(spec, rng, device)
        self._target.parameters.copy_(self._actor.parameters)
        self._critics = TwinCritics(spec, rng, device)
        self._steps = 0

    @torch.no_grad()
    def step(self, minibatch: Minibatch, learning_rate: float) -> Learnt:
        """Critics always; actor and targets every `policy_interval` steps."""
        config = self._config
        features, following, actions, returns, discounts, weights = on_device(minibatch, self._device)
        noise = torch.from_numpy(self._rng.standard_normal(minibatch.actions.shape, dtype=np.float32)).to(self._device)
        next_actions = self._target.forward(following).tanh_()
        next_actions = smoothed(next_actions, noise, spread=config.target_noise, limit=config.target_noise_limit)
        targets = twin_targets(returns, discounts, self._critics.target(following, next_actions))
        fit = self._critics.fit(features, actions, targets, weights, learning_rate)
        loss, value, error, norm = torch.stack((fit.loss, fit.value, fit.error, fit.norm)).tolist()
        means = {"loss/critics": loss, "value/mean": value, "value/error": error}
        self._steps += 1
        if self._steps % config.policy_interval == 0:
            chosen = self._actor.forward(features).tanh_()
            values, action_gradient = self._critics.first(features, chosen)
            self._actor.step(policy_gradient(chosen, action_gradient), learning_rate)
            self._critics.follow(config.target_rate)
            self._target.parameters.lerp_(self._actor.parameters, config.target_rate)
            means["loss/policy"] = -float(values.mean())
        return Learnt(means, norm, fit.errors.cpu().numpy())

    def policy_weights(self) -> dict[str, Array]:
        """A copy of the actor's weights."""
        return self._actor.policy_weights()

    def tensors(self) -> dict[str, Array]:
        """Everything that decides the next step but the random state."""
        target = np.array(self._target.parameters.cpu().numpy())
        steps = np.array([self._steps], np.int64)
        return {**self._actor.tensors(), **self._critics.tensors(), "target_actor": target, "td3_steps": steps}

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
        with torch.no_grad():
            self._actor.restore(tensors)
            self._critics.restore(tensors)
            self._target.parameters.copy_(torch.from_numpy(np.array(tensors["target_actor"])))
        self._steps = int(tensors["td3_steps"][0])
