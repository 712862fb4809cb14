"""A process's part in federations: models in, updates out, and the state of each of its nodes between rounds."""
