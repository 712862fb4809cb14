"""The format of the core's decisions on disk, and how a core is rebuilt from them."""
