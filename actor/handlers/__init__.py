"""The built-in handlers: what an actor can do, one kind each. They know nothing of leases; slots run them."""
