"""Sends and receives policies: split once for all readers, checked on arrival. Learner, relay and actor share it."""
