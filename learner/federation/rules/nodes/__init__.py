"""The nodes of a federation: who may be asked, who is, and what each answered. Pure."""
