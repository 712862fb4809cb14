"""Runs from their creation to their end: training, evaluation, progress and the record that survives a restart."""
