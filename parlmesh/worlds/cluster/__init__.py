"""Placement on a real cluster: the same spaces and reward, over the official Kubernetes client.

Dry-run is the default. Every write is logged first, rate-limited, and confined to the allowed namespaces.
"""
