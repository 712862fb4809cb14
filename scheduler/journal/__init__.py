"""What the core's decisions look like on disk, and how a core is rebuilt from them."""
