"""An orchestrator that is a language model."""
