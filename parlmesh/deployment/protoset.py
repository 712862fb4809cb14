"""The contract as one file of descriptors, for use without reflection (`grpcurl -protoset`)."""

from importlib import import_module
from importlib.resources import files
from typing import Any


def protoset() -> bytes:
    """All files of parlmesh.v1, gRPC health and error details, each after its imports."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    found = FileDescriptorSet()
    seen: set[str] = set()

    def add(descriptor: Any) -> None:
        if descriptor.name in seen:
            return
        seen.add(descriptor.name)
        for dependency in descriptor.dependencies:
            add(dependency)
        descriptor.CopyToProto(found.file.add())

    names = sorted(each.name for each in files("parlmesh.v1").iterdir() if each.name.endswith("_pb2.py"))
    modules = [f"parlmesh.v1.{name.removesuffix('.py')}" for name in names]
    for module in [*modules, "grpc_health.v1.health_pb2", "google.rpc.error_details_pb2"]:
        add(import_module(module).DESCRIPTOR)
    return found.SerializeToString(deterministic=True)
