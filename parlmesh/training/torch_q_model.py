"""Values in training under torch's autograd. Imported only when the configuration asks for torch."""

import copy
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from parlmesh.algorithms.dqn import QTerms, double_q_targets
from parlmesh.algorithms.dqn_torch import dueling, huber_loss
from parlmesh.policies import PolicySpec
from parlmesh.policies.numpy_q_networks import DenseQ
from parlmesh.policies.torch_networks import ActorCritic
from parlmesh.policies.torch_threads import choose_threads
from parlmesh.types import Array

from .numpy_q_model import QStep
from .replay_trainer import Minibatch
from .settings.dqn import DqnConfig
from .shared_step import Share, share_gradients
from .subnormals import flushed_subnormals
from .torch_device import CPU


class TorchQModel:
    """Any network without memory. A perceptron starts from the same weights as the numpy model of the same seed.

    The networks are those of an actor-critic, whose policy head gives values here; the value head is unused.
    """

    share: Share | None = None

    def __init__(
        self, spec: PolicySpec, config: DqnConfig, rng: np.random.Generator, device: torch.device = CPU
    ) -> None:
        choose_threads(config.torch_threads or 1)
        self._device = device
        self._config = config
        self._dueling = spec.dueling
        if spec.network == "mlp":
            self._online = ActorCritic(spec)
            self._online.load_named({**self._online.named_weights(), **DenseQ(spec, rng).named_weights()})
        else:
            # The process's global generator is unchanged.
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(rng.integers(2**31)))
                self._online = ActorCritic(spec)
        self._online.to(device)
        self._target = copy.deepcopy(self._online).requires_grad_(False)
        self._parameters = [value for name, value in self._online.named_parameters() if _acting(name)]
        self._optimiser = torch.optim.Adam(self._parameters, lr=config.learning_rate, eps=1e-5, fused=True)

    def step(self, minibatch: Minibatch, learning_rate: float) -> QStep:
        """One gradient step by torch's fused Adam."""
        next_features = self._tensor(minibatch.next_features)
        with torch.no_grad():
            next_target = self._values(self._target, next_features)
            next_online = self._values(self._online, next_features) if self._config.double else next_target
        targets = double_q_targets(
            minibatch.returns,
            minibatch.discounts,
            next_online.cpu().numpy(),
            next_target.cpu().numpy(),
            minibatch.next_masks,
        )
        loss, errors, terms = huber_loss(
            self._values(self._online, self._tensor(minibatch.features)),
            self._tensor(minibatch.actions),
            self._tensor(targets),
            None if minibatch.weights is None else self._tensor(minibatch.weights),
            threshold=self._config.huber_threshold,
        )
        for group in self._optimiser.param_groups:
            group["lr"] = learning_rate
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.share is not None:
            terms = QTerms(*share_gradients(self._parameters, self.share, terms, errors.cpu().numpy()))
        norm = nn.utils.clip_grad_norm_(self._parameters, self._config.gradient_norm)
        with flushed_subnormals():
            self._optimiser.step()
        return QStep(terms, float(norm), errors.cpu().numpy())

    def follow(self, rate: float) -> None:
        """Moves the target network by this fraction."""
        with torch.no_grad():
            for followed, following in zip(self._online.parameters(), self._target.parameters(), strict=True):
                following.lerp_(followed, rate)

    def policy_weights(self) -> dict[str, Array]:
        """A copy of everything but the value head."""
        return {name: weight for name, weight in self._online.named_weights().items() if _acting(name)}

    def tensors(self) -> dict[str, Array]:
        """Weights of both networks and Adam's state."""
        found: dict[str, Array] = {}
        for part, network in (("network", self._online), ("target", self._target)):
            found |= {f"{part}.{name}": value.cpu().numpy().copy() for name, value in network.state_dict().items()}
        for index, state in self._optimiser.state_dict()["state"].items():
            for name, value in state.items():
                found[f"adam.{index}.{name}"] = np.array(value.cpu().numpy())
        return found

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
        weights: dict[str, dict[str, Tensor]] = {"network": {}, "target": {}}
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            part, _, rest = name.partition(".")
            tensor = torch.from_numpy(np.array(value))
            if part in weights:
                weights[part][rest] = tensor
            elif part == "adam":
                index, field = rest.split(".")
                state.setdefault(int(index), {})[field] = tensor
        self._online.load_state_dict(weights["network"])
        self._target.load_state_dict(weights["target"])
        groups = self._optimiser.state_dict()["param_groups"]
        self._optimiser.load_state_dict({"state": state, "param_groups": groups})

    def _values(self, network: ActorCritic, features: Tensor) -> Tensor:
        outputs, _ = network(features)
        values: Tensor = dueling(outputs) if self._dueling else outputs
        return values

    def _tensor(self, array: Array) -> Tensor:
        """The array as a tensor; on the CPU, a view of it."""
        return torch.from_numpy(array).to(self._device)


def _acting(name: str) -> bool:
    return not name.startswith("value.") and name != "log_std"
