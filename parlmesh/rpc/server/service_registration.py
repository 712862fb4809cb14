"""Registers a servicer from the contract's descriptor, so that hot methods can pass encoded messages."""

from collections.abc import Collection
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from .method_shapes import METHOD_MAKERS
from .server import Service


def service_of(
    file: FileDescriptor,
    name: str,
    servicer: object,
    *,
    reads_encoded: Collection[str] = (),
    writes_encoded: Collection[str] = (),
) -> Service:
    """The servicer as the service `name` of a file; the named methods take, or give, messages as bytes."""
    descriptor = file.services_by_name[name]

    def handler(method: MethodDescriptor) -> Any:
        parse = None if method.name in reads_encoded else GetMessageClass(method.input_type).FromString
        serialize = None if method.name in writes_encoded else GetMessageClass(method.output_type).SerializeToString
        make = METHOD_MAKERS[method.client_streaming, method.server_streaming]
        return make(getattr(servicer, method.name), request_deserializer=parse, response_serializer=serialize)

    handlers = {method.name: handler(method) for method in descriptor.methods}

    def register(server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(descriptor.full_name, handlers),))

    return Service(descriptor.full_name, register)
