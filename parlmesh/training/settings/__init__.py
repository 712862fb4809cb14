"""What a run may be told: budgets and lag for every run, and the settings of each algorithm."""
