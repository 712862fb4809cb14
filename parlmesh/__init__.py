"""parlmesh: train and run policies over a fleet of mesh nodes."""
