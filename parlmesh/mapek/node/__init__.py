"""Code that runs on the managed node: sensors, probes, analysis, actions, and the state that survives a restart."""
