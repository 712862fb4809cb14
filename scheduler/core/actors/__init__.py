"""Actors and nodes as the scheduler sees them: sessions, leases, placement, quarantine."""
