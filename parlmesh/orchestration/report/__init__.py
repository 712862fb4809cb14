"""Where a job's time went, from the scheduler's trace."""
