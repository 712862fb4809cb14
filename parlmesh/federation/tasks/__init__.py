"""Learning tasks that come with parlmesh. Each imports what it needs when it is made."""
