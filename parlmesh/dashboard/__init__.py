"""The web page of a fleet: a process of its own that reads gRPC, so that looking never slows the scheduler.

It stands on the public protos alone; what it shows, anyone could ask for.
"""
