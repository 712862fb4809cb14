"""The arithmetic of secure aggregation: secret shares, keys between nodes, masks and fixed-point values. No I/O."""
