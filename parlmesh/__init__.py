"""parlmesh: train and run policies over a fleet of mesh nodes. Importing it changes nothing in the process."""
