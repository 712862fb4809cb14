"""The learner as an actor sees it: policies come in, trajectories go out."""
