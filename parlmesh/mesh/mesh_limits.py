"""Limits on the size of meshes, files and tasks."""

MOST_NODES = 10_000
MOST_LINKS = 200_000
"""Directed links; a two-way cable counts twice."""
LONGEST_NAME = 200
LARGEST_FILE_BYTES = 32 << 20
MOST_DUMPS = 2000
"""babeld dumps in one folder."""
MOST_PAIRS = 100_000
"""Pairs per disjoint-paths task."""
