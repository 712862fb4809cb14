"""Group-relative advantages (Shao et al. 2024, arXiv:2402.03300): compares episodes with the same first observation."""

import numpy as np

from parlmesh.types import Array


def group_relative(
    observations: Array, rewards: Array, valid: Array, terminated: Array, truncated: Array, *, discount: float
) -> tuple[Array, Array, Array]:
    """A mask of steps in complete episodes, their advantages, and their returns; all [T, E].

    The advantage of every step is its episode's return minus the mean return of the batch's episodes with the same
    first observation, in standard deviations of that group; an episode alone in its group has advantage 0. Every
    episode that ended in the batch counts as complete; one that started before the batch is alone, because its first
    row is unique.
    """
    rows, width = rewards.shape
    whole = np.zeros((rows, width), np.bool_)
    advantages, returns = np.zeros((rows, width), np.float32), np.zeros((rows, width), np.float32)
    groups: dict[bytes, list[tuple[int, int, int, float]]] = {}
    for column in range(width):
        start = 0
        for row in range(rows):
            if not valid[row, column]:
                start = row + 1
            elif terminated[row, column] or truncated[row, column]:
                total = 0.0
                for step in range(row, start - 1, -1):
                    total = float(rewards[step, column]) + discount * total
                    returns[step, column] = total
                beginning = observations[start, column].tobytes()
                groups.setdefault(beginning, []).append((column, start, row + 1, total))
                whole[start : row + 1, column] = True
    for episodes in groups.values():
        totals = np.array([total for *_, total in episodes])
        relative = (totals - totals.mean()) / (totals.std() + 1e-6)
        for (column, start, end, _), advantage in zip(episodes, relative, strict=True):
            advantages[start:end, column] = advantage
    return whole, advantages, returns
