"""A process's part in federations: models in, updates out, and what each of its nodes keeps between rounds."""
