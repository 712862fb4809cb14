"""Service placement on an edge cluster: which node runs how many pods of which deployment, as load and users move."""
