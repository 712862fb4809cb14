"""A fleet inside a Ray cluster: Ray places and restarts its processes, parlmesh does the rest."""
