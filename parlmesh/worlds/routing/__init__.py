"""Routing in a mesh: a packet chooses its next hop from what its node knows, until it arrives or is lost."""
