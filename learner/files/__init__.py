"""What a learner writes to disk: checkpoints, models, curves and the formats that others read."""
