"""A learning task from your own torch module and data set: subclass it, or call it in a maker.

Parameters are aggregated; floating-point buffers (such as batch-norm statistics) stay on the node, integer ones on the
server.
"""

import copy
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from parlmesh.types import Array

from ..learning_task import Evaluated, FirstModel, Fitted, Part
from ..schema import KEEP, LOCAL

Split = Callable[[Part], tuple[Tensor, Tensor]]


class TorchTask:
    """Trains on `training(part)` and evaluates on `evaluation(part)`; both return inputs and targets."""

    def __init__(
        self,
        make_module: Callable[[], nn.Module],
        training: Split,
        evaluation: Split,
        *,
        loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
        epochs: int = 1,
        batch: int = 32,
        learning_rate: float = 0.1,
        proximal: float = 0.0,
        optimiser: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
    ) -> None:
        """`optimiser` replaces plain gradient descent, e.g. `lambda ps: torch.optim.AdamW(ps, 1e-3)`."""
        self._make_module = make_module
        self._training = training
        self._evaluation = evaluation
        self._loss = loss
        self._epochs = epochs
        self._batch = batch
        self._proximal = proximal
        self._optimiser = optimiser or (lambda parameters: torch.optim.SGD(parameters, lr=learning_rate))

    def first(self, seed: int) -> FirstModel:
        """The module's own initialisation, with the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self._make_module()
        buffers = dict(module.named_buffers())
        rules = {name: LOCAL if buffer.is_floating_point() else KEEP for name, buffer in buffers.items()}
        return FirstModel({name: value.numpy().copy() for name, value in module.state_dict().items()}, rules)

    def fit(self, tensors: Mapping[str, Array], part: Part) -> Fitted:
        """Epochs of minibatches; `proximal` is FedProx's mu."""
        module = self._load(tensors).train()
        start = copy.deepcopy(list(module.parameters()))
        inputs, targets = self._training(part)
        optimiser = self._optimiser(module.parameters())
        rng = np.random.default_rng([part.seed, part.number, part.round])
        loss = torch.zeros(())
        for _ in range(self._epochs):
            order = torch.from_numpy(rng.permutation(len(targets)))
            for rows in torch.split(order, self._batch or len(order)):
                part.check()
                optimiser.zero_grad()
                loss = self._loss(module(inputs[rows]), targets[rows])
                total = loss
                if self._proximal:
                    pull = sum((p - s.detach()).square().sum() for p, s in zip(module.parameters(), start, strict=True))
                    total = loss + 0.5 * self._proximal * pull
                total.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        found = {name: value.numpy() for name, value in module.state_dict().items()}
        return Fitted(found, len(targets), {"loss": float(loss.detach())})

    def evaluate(self, tensors: Mapping[str, Array], part: Part) -> Evaluated:
        """Mean loss and, if targets are labels, accuracy."""
        module = self._load(tensors).eval()
        inputs, targets = self._evaluation(part)
        with torch.inference_mode():
            outputs = module(inputs)
            metrics = {"loss": float(self._loss(outputs, targets))}
            if not targets.is_floating_point():
                metrics["accuracy"] = float((outputs.argmax(dim=1) == targets).float().mean())
        return Evaluated(len(targets), metrics)

    def _load(self, tensors: Mapping[str, Array]) -> nn.Module:
        module = self._make_module()
        module.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in tensors.items()})
        return module
