"""parlmesh: train and run policies over a fleet of mesh nodes."""

from .engine import choose_engine

# Here, because it must come before any module imports grpc.
choose_engine()
