"""The arithmetic of federated rounds: weighting, aggregating, masking and compressing updates. No I/O."""
