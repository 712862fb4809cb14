"""One actor: its stream to the scheduler, its leases and results, and the slots that run its tasks."""
