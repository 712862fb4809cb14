"""Service placement on an edge cluster: how many pods of each deployment run on each node, as load and users move."""
