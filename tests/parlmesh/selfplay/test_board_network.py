"""The network for boards, and learning from turned boards."""

import numpy as np
import pytest
import torch

from parlmesh.environments import environment_spec
from parlmesh.errors import ConfigError
from parlmesh.plugins import load_plugins
from parlmesh.policies import PolicySpec
from parlmesh.selfplay.board_network import BoardNetwork


def network(game="tictactoe"):
    load_plugins(["selfplay"])
    spec = PolicySpec.for_environment(environment_spec({"id": f"games/{game}"}), network="board_turned", hidden=(4,))
    torch.manual_seed(0)
    found = BoardNetwork(spec, turned=True)
    for parameter in found.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return found


def turned(board, times, *, mirrored):
    """The last two axes of an array."""
    return np.rot90(np.flip(board, -1) if mirrored else board, times, (-2, -1))


def test_training_sees_the_board_from_all_sides_and_answers_for_the_original():
    net = network()
    planes = np.zeros((1, 2, 3, 3), np.uint8)
    planes[0, 0, 0, 1] = planes[0, 0, 1, 0] = planes[0, 1, 2, 0] = 1
    logits, values = (found.detach().numpy() for found in net(torch.from_numpy(planes.repeat(8, axis=0))))
    assert len(np.unique(values.round(5))) == 8
    with torch.no_grad():
        for row in range(8):
            side = {"times": row % 4, "mirrored": row >= 4}
            seen, value = net(torch.from_numpy(turned(planes, **side).copy()))
            # There is one logit per square, and they turn with the board.
            expected = turned(logits[row].reshape(3, 3), **side).reshape(-1)
            np.testing.assert_allclose(seen[0].numpy(), expected, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(value[0], values[row], rtol=1e-5)


def test_playing_sees_every_board_as_it_is():
    planes = torch.zeros(8, 2, 3, 3, dtype=torch.uint8)
    planes[:, 0, 0, 1] = 1
    with torch.inference_mode():
        logits, values = network()(planes)
    assert len(values.unique()) == 1
    torch.testing.assert_close(logits, logits[:1].expand(8, -1))


def test_a_board_that_cannot_be_turned_is_refused():
    with pytest.raises(ConfigError, match=r"board_turned needs a square board.* 7 moves on 6 x 7"):
        network("connect_four")
