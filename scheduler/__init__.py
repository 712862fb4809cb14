"""The scheduler: accepts tasks, assigns them to actors by priority, and keeps their outcomes."""
