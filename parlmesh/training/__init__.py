"""Trains a policy where the experience is: on the learner for a fleet's run, on a node for its part of a round."""
