"""Log-probabilities when few of many choices are allowed: computes only those."""

import numpy as np
import torch
from torch import Tensor

from parlmesh.types import Array

from .distributions import MASKED

WIDE = 256
"""From this many choices on, forbidden ones cost more than skipping them: exp is slowest where it underflows."""


def allowed_likelihood(outputs: Tensor, allowed: Array, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies [B] of actions [B], given outputs [B, choices] and allowed choices [B, choices].
    A forbidden action counts as nearly impossible."""
    rows, columns = np.nonzero(allowed)
    counts = np.bincount(rows, minlength=len(allowed))
    # Rows are padded to the longest.
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    index = np.zeros((len(allowed), max(1, int(counts.max(initial=0)))), np.int64)
    index[rows, place] = columns
    real = torch.from_numpy(np.arange(index.shape[1]) < counts[:, None]).to(outputs.device)
    choices = torch.from_numpy(index).to(outputs.device)
    logits = torch.where(real, outputs.gather(1, choices), float(MASKED))
    log_probs = torch.log_softmax(logits, dim=1)
    taken = (choices == actions.reshape(-1, 1)) & real
    chosen = torch.where(taken, log_probs, 0.0).sum(dim=1) + torch.where(taken.any(dim=1), 0.0, float(MASKED))
    return chosen, -(log_probs.exp() * log_probs).sum(dim=1)
