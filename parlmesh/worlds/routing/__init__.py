"""Routing in a mesh: a packet at a node chooses its next hop by what the node knows, until it arrives or is lost."""
