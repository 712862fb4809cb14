"""How large a mesh may be, wherever it is read from."""

MOST_NODES = 10_000
MOST_LINKS = 200_000
"""From one node to another; a cable that carries both ways counts twice."""
LONGEST_NAME = 200
