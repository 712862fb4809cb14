"""The network `board`: residual convolutions over planes, with the smallest policy head that the moves allow.

`hidden` sets its size: one entry per residual block, all equal to the number of channels.
"""

import torch
from torch import Tensor, nn

from parlmesh.errors import ConfigError
from parlmesh.policies import PolicySpec

# Channels before a dense head, and the width of the value's hidden layer.
_NARROW, _VALUE_WIDTH = 4, 64


class _Block(nn.Module):
    """Two convolutions with a skip connection. The second starts at zero, so a deep network starts as a shallow one."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)  # type: ignore[arg-type]

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = torch.relu(hidden + self.second(torch.relu(self.first(hidden))))
        return found


class BoardNetwork(nn.Module):
    """Planes [B, C, H, W] to logits [B, choices] and values [B] between −1 and 1.

    If every square has the same number of moves, as in shogi's spatial form, the head is a 1 x 1 convolution, otherwise
    a dense layer over few channels. With `outcomes`, the value is P(win) − P(loss), with draws as a separate class.
    With `turned`, it trains on rotated and mirrored boards, for games with that symmetry whose moves are squares: each
    position then teaches its eight variants.
    """

    _turns: Tensor

    def __init__(self, spec: PolicySpec, *, outcomes: bool = False, turned: bool = False) -> None:
        super().__init__()
        if len(spec.observation_shape) != 3:
            raise ConfigError(f"network board needs planes [C, H, W], got {list(spec.observation_shape)}")
        if not spec.hidden or len(set(spec.hidden)) != 1:
            raise ConfigError(f"training.hidden must be equal numbers of channels for a board, got {list(spec.hidden)}")
        planes, rows, columns = spec.observation_shape
        squares, channels, choices = rows * columns, spec.hidden[0], spec.action.outputs
        self.inlet = nn.Conv2d(planes, channels, 3, padding=1)
        self.blocks = nn.ModuleList(_Block(channels) for _ in spec.hidden)
        self.spatial = choices % squares == 0 and choices > squares
        if self.spatial:
            self.policy: nn.Module = nn.Conv2d(channels, choices // squares, 1)
        else:
            narrow = channels if squares <= 64 else _NARROW
            self.narrow = nn.Conv2d(channels, narrow, 1)
            self.policy = nn.Linear(narrow * squares, choices)
        self.value_inlet = nn.Conv2d(channels, _NARROW, 1)
        self.value_hidden = nn.Linear(_NARROW * squares, _VALUE_WIDTH)
        self.value = nn.Linear(_VALUE_WIDTH, 3 if outcomes else 1)
        self.outcomes, self.turned = outcomes, turned
        if turned:
            if rows != columns or choices != squares:
                message = f"as many moves as squares, got {choices} moves on {rows} x {columns}"
                raise ConfigError(f"network board_turned needs a square board with {message}")
            self.register_buffer("_turns", _turns(rows), persistent=False)
        for head in (self.policy, self.value):
            nn.init.normal_(head.weight, std=0.01)
            nn.init.zeros_(head.bias)  # type: ignore[arg-type]

    def forward(self, planes: Tensor) -> tuple[Tensor, Tensor]:
        """Boards are turned only when gradients are enabled; in play they are unchanged."""
        if not self.turned or not torch.is_grad_enabled():
            return self._seen(planes)
        # Minibatches are in random order, so the position in one is as good as a draw, and reproducible.
        turns = self._turns[torch.arange(len(planes), device=planes.device) % len(self._turns)]
        squares = planes.flatten(2).gather(2, turns[:, None].expand(-1, planes.shape[1], -1))
        logits, values = self._seen(squares.view(planes.shape))
        return torch.zeros_like(logits).scatter(1, turns, logits), values

    def _seen(self, planes: Tensor) -> tuple[Tensor, Tensor]:
        # Channels-last memory format: CPU convolutions take a third less time.
        hidden = torch.relu(self.inlet(planes.to(torch.float32, memory_format=torch.channels_last)))
        for block in self.blocks:
            hidden = block(hidden)
        if self.spatial:
            # Square by square, with the moves of each square adjacent.
            logits = self.policy(hidden).permute(0, 2, 3, 1).flatten(1)
        else:
            logits = self.policy(torch.relu(self.narrow(hidden)).flatten(1))
        value = self.value(torch.relu(self.value_hidden(torch.relu(self.value_inlet(hidden)).flatten(1))))
        if self.outcomes:
            chances = torch.softmax(value, dim=1)
            return logits, chances[:, 0] - chances[:, 2]
        return logits, torch.tanh(value.squeeze(1))


def _turns(size: int) -> Tensor:
    """[8, squares]: the square permutations of the four rotations, without and with mirroring."""
    board = torch.arange(size * size).view(size, size)
    sides = (board, board.flip(1))
    return torch.stack([torch.rot90(side, times).flatten() for side in sides for times in range(4)])
