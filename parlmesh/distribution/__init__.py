"""Policies on their way: cut up once for all readers, checked on arrival. Learner, relay and actor share it."""
