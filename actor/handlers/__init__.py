"""The built-in handlers, one kind each. They know nothing of leases; slots run them."""
