"""Where the time of a job went, from the scheduler's own trace."""
