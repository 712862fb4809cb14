"""Files that put a fleet on machines: containers, Kubernetes, systemd, Slurm, Prometheus. Starts nothing."""
