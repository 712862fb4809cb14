"""The files of a learner: checkpoints, models, curves and the formats that other programs read."""
