"""A learner of several processes: rank 0 decides and talks to everybody, the others compute gradients for it."""
