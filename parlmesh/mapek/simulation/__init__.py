"""Incidents with hidden best actions, and a web system under load, for evaluating planners."""
