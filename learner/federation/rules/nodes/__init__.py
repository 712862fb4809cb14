"""The nodes of a federation: which may be asked, which are, and what each answered. Pure."""
