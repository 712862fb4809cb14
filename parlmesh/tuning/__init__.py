"""Search for good settings: trials are trained on the actors of a fleet, one coordinator asks and tells Optuna."""
