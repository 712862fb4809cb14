"""The torch networks; weight names match `numpy_acting` and `numpy_networks`."""

import itertools
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from parlmesh.errors import ConfigError
from parlmesh.types import Array

from .convolutions import CONVOLUTIONS, flat_size
from .custom_networks import custom_network, takes_images
from .policy_spec import PolicySpec


class ActorCritic(nn.Module):
    """Outputs and values: separate perceptrons, or two heads on a shared recurrent or convolutional body."""

    def __init__(self, spec: PolicySpec, *, initial_log_std: float = 0.0) -> None:
        super().__init__()
        self.spec = spec
        self._activation = torch.tanh if spec.activation == "tanh" else torch.relu
        sizes = spec.layer_sizes
        build = custom_network(spec.network)
        if build is not None:
            self.custom = _checked(spec, build(spec))
        elif spec.network == "recurrent":
            self.body = _layers(sizes[:-2])
            self.memory = nn.GRUCell(sizes[-3], sizes[-2])
            self.policy, self.value = _layers(sizes[-2:]), _layers((sizes[-2], 1))
        elif spec.network in CONVOLUTIONS:
            layers = CONVOLUTIONS[spec.network]
            inputs = (spec.observation_shape[0], *(layer.channels for layer in layers))
            self.conv = nn.ModuleList()
            for channels, layer in zip(inputs, layers, strict=False):
                kernel, stride, padding = layer.kernel, layer.stride, layer.padding
                self.conv.append(nn.Conv2d(channels, layer.channels, kernel, stride=stride, padding=padding))
                inner = (nn.Conv2d(layer.channels, layer.channels, 3, padding=1) for _ in range(2 * layer.blocks))
                self.conv.extend(inner)
            self.body = _layers((flat_size(spec.network, spec.observation_shape), *spec.hidden))
            self.policy, self.value = _layers((spec.hidden[-1], sizes[-1])), _layers((spec.hidden[-1], 1))
        else:
            self.policy, self.value = _layers(sizes), _layers((*sizes[:-1], 1))
        self.log_std = nn.Parameter(torch.full((len(spec.action.low),), initial_log_std))
        if build is None:
            _initialise(self)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [B, outputs] and values [B] of features [B, ...], for networks without memory."""
        if hasattr(self, "custom"):
            outputs, values = self.custom(features)
            return outputs, values
        if self.spec.network in CONVOLUTIONS:
            scale = 1.0 / 255.0 if features.dtype == torch.uint8 else 1.0
            # Channels last in memory: convolutions on the CPU take a third less time.
            features = features.to(torch.float32, memory_format=torch.channels_last) * scale
            features = self._run(self.body, self._convolved(features).flatten(1), last=True)
        return self._run(self.policy, features), self._run(self.value, features).squeeze(1)

    def unroll(self, features: Tensor, starts: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [T, B, outputs] and values [T, B] of features [T, B, size], for networks with memory.

        `state` [B, S] is the memory before the first step; it is reset where `starts` [T, B] is true.
        """
        hidden = self._remember(self._run(self.body, features, last=True), starts, state)
        return self._run(self.policy, hidden), self._run(self.value, hidden).squeeze(2)

    def _remember(self, inputs: Tensor, starts: Tensor, state: Tensor) -> Tensor:
        """States [T, B, S] of the GRU, in one call for all stretches between starts; short ones are padded.

        One call per step would spend most of its time on overhead.
        """
        steps, width = starts.shape
        opened = starts.clone()
        opened[0] = True
        # Stretches are numbered environment by environment; `since` counts the steps of each.
        number = (opened.T.reshape(-1).cumsum(0) - 1).reshape(width, steps).T
        clock = torch.arange(steps, device=starts.device).unsqueeze(1)
        since = clock - torch.where(opened, clock, 0).cummax(dim=0).values
        count, longest = int(number.max()) + 1, int(since.max()) + 1
        padded = inputs.new_zeros(longest, count, inputs.shape[2]).index_put((since, number), inputs)
        before = state.new_zeros(count, state.shape[1])
        before[number[0]] = torch.where(starts[0].unsqueeze(1), 0.0, state)
        cell = self.memory
        weights = [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]
        states, _ = torch.gru(padded, before.unsqueeze(0), weights, True, 1, 0.0, self.training, False, False)
        found: Tensor = states[since, number]
        return found

    def likelihood(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [B] of actions, as in `distributions`."""
        if self.spec.action.kind == "continuous":
            normal = torch.distributions.Normal(outputs, self.log_std.exp(), validate_args=False)
            return normal.log_prob(actions).sum(1), normal.entropy().sum(1)  # type: ignore[no-untyped-call]
        columns = actions.reshape(len(actions), -1)
        found = []
        for index, logits in enumerate(torch.split(outputs, list(self.spec.action.sizes), dim=1)):
            log_probs = torch.log_softmax(logits, dim=1)
            chosen = log_probs.gather(1, columns[:, index : index + 1]).squeeze(1)
            found.append(torch.stack((chosen, -(log_probs.exp() * log_probs).sum(dim=1))))
        log_prob, entropy = torch.stack(found).sum(dim=0)
        return log_prob, entropy

    def named_weights(self) -> dict[str, Array]:
        """Copies of all weights, under the names that actors read."""
        found = {name: weight.detach().cpu().numpy().copy() for name, weight in self.state_dict().items()}
        log_std = found.pop("log_std")
        return {**found, "policy.log_std": log_std} if log_std.size else found

    def load_named(self, weights: Mapping[str, Array]) -> None:
        """The inverse of `named_weights`; ignores tensors the network does not have, such as a normaliser's."""
        known = self.state_dict().keys()
        tensors = {name: torch.from_numpy(weight.copy()) for name, weight in weights.items() if name in known}
        tensors["log_std"] = torch.from_numpy(weights["policy.log_std"].copy()) if len(self.log_std) else torch.empty(0)
        self.load_state_dict(tensors)

    def _convolved(self, images: Tensor) -> Tensor:
        layers, modules = CONVOLUTIONS[self.spec.network], iter(self.conv)
        for index, layer in enumerate(layers, start=1):
            images = next(modules)(images)
            if layer.pooled:
                images = torch.nn.functional.max_pool2d(images, 3, stride=2, padding=1)
            for _ in range(layer.blocks):
                first, second = next(modules), next(modules)
                images = images + second(torch.relu(first(torch.relu(images))))
            if not layer.blocks or index == len(layers):
                images = torch.relu(images)
        return images

    def _run(self, layers: nn.ModuleList, hidden: Tensor, *, last: bool = False) -> Tensor:
        """Runs the layers with activations in between and, if `last`, after the last one too."""
        for index, layer in enumerate(layers):
            hidden = layer(hidden)
            if last or index < len(layers) - 1:
                hidden = self._activation(hidden)
        return hidden


def _checked(spec: PolicySpec, network: nn.Module) -> nn.Module:
    """Raises ConfigError when a plug-in's network does not fit its specification."""
    wanted, found = [(2, spec.action.outputs), (2,)], "nothing that can be used"
    given = (2, *(spec.observation_shape if takes_images(spec.network) else (spec.observation_size,)))
    try:
        with torch.inference_mode():
            answer = network(torch.zeros(given))
        shapes = [tuple(part.shape) for part in answer]
        found = " and ".join(str(list(shape)) for shape in shapes)
    except (TypeError, AttributeError, RuntimeError, ValueError) as error:
        shapes, found = [], f"{type(error).__name__}: {error}"
    if shapes != wanted:
        message = f"network {spec.network!r} must turn features {list(given)} into outputs {list(wanted[0])}"
        raise ConfigError(f"{message} and values {list(wanted[1])}, got {found}")
    return network


def _layers(sizes: tuple[int, ...]) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(inputs, outputs) for inputs, outputs in itertools.pairwise(sizes))


def _initialise(network: ActorCritic) -> None:
    """Orthogonal weights and zero biases, which give a nearly uniform first policy."""
    for module in network.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(module.weight, math.sqrt(2.0))
            assert module.bias is not None
            nn.init.zeros_(module.bias)
    for head, gain in ((network.policy[-1], 0.01), (network.value[-1], 1.0)):
        assert isinstance(head, nn.Linear)
        nn.init.orthogonal_(head.weight, gain)
