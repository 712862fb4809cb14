"""Registers servicers from the contract's descriptors, so that busy streams can answer with encoded bytes."""

from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from parlmesh.rpc.server import Service
from parlmesh.v1 import fleet_service_pb2, scheduler_service_pb2

from .fleet_servicer import FleetServicer
from .scheduler_servicer import SchedulerServicer

SCHEDULER = scheduler_service_pb2.DESCRIPTOR.services_by_name["SchedulerService"]
# Methods that take or give messages as bytes.
READ_ENCODED = frozenset({"SubmitTasks", "SubmitTaskStream", "Connect"})
WRITE_ENCODED = frozenset({"SubmitTaskStream", "WatchTasks", "Connect"})
FLEET = fleet_service_pb2.DESCRIPTOR.services_by_name["FleetService"]


def services(scheduler: SchedulerServicer, fleet: FleetServicer) -> list[Service]:
    return [_service(SCHEDULER, scheduler), _service(FLEET, fleet)]


def _service(descriptor: ServiceDescriptor, servicer: object) -> Service:
    handlers = {method.name: _handler(method, getattr(servicer, method.name)) for method in descriptor.methods}

    def register(server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(descriptor.full_name, handlers),))

    return Service(descriptor.full_name, register)


def _handler(method: MethodDescriptor, behaviour: Any) -> Any:
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[method.client_streaming, method.server_streaming]
    return make(
        behaviour,
        request_deserializer=None if method.name in READ_ENCODED else GetMessageClass(method.input_type).FromString,
        response_serializer=(
            None if method.name in WRITE_ENCODED else GetMessageClass(method.output_type).SerializeToString
        ),
    )
