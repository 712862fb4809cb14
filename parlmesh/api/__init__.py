"""Training and acting from Python, built on the fleet's processes and the learner's services."""
