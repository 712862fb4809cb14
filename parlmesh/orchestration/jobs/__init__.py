"""Jobs to orchestrate: families of sub-tasks, the frozen sub-agents that do them, and a simulation of both."""
