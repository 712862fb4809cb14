"""Incidents with hidden best actions, and a web system under load, to judge planners by."""
