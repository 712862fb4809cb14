"""The nodes of a federation: which may be asked, which are asked, and their answers. Pure."""
