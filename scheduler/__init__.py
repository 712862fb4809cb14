"""The scheduler: takes tasks, gives them to actors by priority, and keeps their outcomes."""
