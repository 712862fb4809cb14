"""The thresholds, rules and actions of a loop that has no configuration file."""

from pathlib import Path

DEFAULTS = Path(__file__).with_name("defaults.yaml")
