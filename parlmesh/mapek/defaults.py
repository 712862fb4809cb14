"""The thresholds, rules and actions that a loop has where no file is named."""

from pathlib import Path

DEFAULTS = Path(__file__).with_name("defaults.yaml")
