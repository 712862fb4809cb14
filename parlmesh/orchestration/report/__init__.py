"""How a job's time was spent, from the scheduler's trace."""
