"""A learner with several processes: rank 0 decides and talks to everyone, the others compute gradients for it."""
