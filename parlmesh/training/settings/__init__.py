"""Settings of runs: budgets and lag for every run, and those of each algorithm."""
