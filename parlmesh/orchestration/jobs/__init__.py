"""Jobs to orchestrate: families of sub-tasks, the frozen sub-agents that do them, and the simulated world of both."""
