"""Hyperparameter search: a fleet's actors train trials, and one coordinator talks to Optuna."""
