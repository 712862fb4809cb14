"""Experience that is trained on more than once: rings of columns, samples from them, and their rate.

Nothing is imported here, because settings are read before numpy may be imported.
"""
