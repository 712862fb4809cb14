"""The web page of a fleet: a separate process that reads over gRPC, so that viewers never slow the scheduler down.

It uses only the public protos, so any other client could show the same.
"""
