"""Placement on a real cluster: the same spaces and the same reward over the official Kubernetes client.

Dry-run is the default, and whatever is written is logged first, limited, and never outside the allowed namespaces.
"""
