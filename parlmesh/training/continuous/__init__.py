"""Learning continuous actions from a replay: soft actor-critic and twin delayed deterministic policy gradients."""
