"""One actor: its stream to the scheduler, what it holds and owes, and the slots that run its tasks."""
