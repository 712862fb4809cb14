"""A fleet inside a Ray cluster: Ray places its processes and starts them again, parlmesh does the rest."""
