"""Few allowed choices of many: the same numbers and gradients as over all of them."""

import numpy as np
import torch

from parlmesh.policies.distributions import MASKED
from parlmesh.policies.torch_likelihoods import allowed_likelihood


def drawn(rows=40, choices=300, share=0.1):
    rng = np.random.default_rng(0)
    allowed = rng.random((rows, choices)) < share
    allowed[np.arange(rows), rng.integers(choices, size=rows)] = True
    # One row has a single choice, another all of them.
    allowed[0], allowed[0, 7], allowed[1] = False, True, True
    actions = np.array([rng.choice(np.flatnonzero(each)) for each in allowed])
    return torch.tensor(rng.normal(size=(rows, choices)) * 3.0, requires_grad=True), allowed, torch.from_numpy(actions)


def over_all(outputs, allowed, actions):
    log_probs = torch.log_softmax(torch.where(torch.from_numpy(allowed), outputs, float(MASKED)), dim=1)
    return log_probs.gather(1, actions[:, None]).squeeze(1), -(log_probs.exp() * log_probs).sum(dim=1)


def test_likelihoods_entropies_and_gradients_are_those_over_all_choices():
    outputs, allowed, actions = drawn()
    found = []
    for likelihood in (allowed_likelihood, over_all):
        outputs.grad = None
        log_prob, entropy = likelihood(outputs, allowed, actions)
        (log_prob.square().sum() + 2.0 * entropy.sum()).backward()
        found.append((log_prob.detach(), entropy.detach(), outputs.grad.clone()))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert found[0][0][0] == 0.0


def test_a_forbidden_action_is_nearly_impossible_whatever_else_is_allowed():
    outputs, allowed, actions = drawn()
    allowed[np.arange(len(actions)), actions.numpy()] = False
    log_prob, entropy = allowed_likelihood(outputs, allowed, actions)
    assert bool((log_prob <= float(MASKED) / 2).all())
    assert bool(torch.isfinite(entropy).all())
