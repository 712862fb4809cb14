"""Renders deployment files for containers, Kubernetes, systemd, Slurm and Prometheus. Starts nothing."""
