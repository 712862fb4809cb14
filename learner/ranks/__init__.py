"""A learner with several processes: rank 0 decides and communicates, the others compute gradients for it."""
