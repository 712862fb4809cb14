"""How large a mesh may be, wherever it is read from, and how much is asked at once."""

MOST_NODES = 10_000
MOST_LINKS = 200_000
"""From one node to another; a cable that carries both ways counts twice."""
LONGEST_NAME = 200
LARGEST_FILE_BYTES = 32 << 20
MOST_DUMPS = 2000
"""Files of babeld in one folder."""
MOST_PAIRS = 100_000
"""Of which one task finds disjoint paths."""
