"""Experience that is trained on more than once: rings of columns, what is drawn from them, and how often.

Nothing is imported here, because settings are read before numpy may be imported.
"""
