"""Policies as they are published: their versions, which are kept, and how they travel to many readers."""
