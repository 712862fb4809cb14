"""Connects the command line to a fleet: addresses, credentials, and errors as readable sentences."""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from parlmesh.errors import DeadlineExceeded, FleetError, Unavailable

if TYPE_CHECKING:
    import grpc
    import grpc.aio

    from parlmesh.security import SecurityConfig
    from parlmesh.v1.federation_service_pb2_grpc import FederationServiceAsyncStub
    from parlmesh.v1.model_service_pb2_grpc import ModelServiceAsyncStub
    from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceAsyncStub
    from parlmesh.v1.training_service_pb2_grpc import TrainingServiceAsyncStub

T = TypeVar("T")
Stub = TypeVar("Stub")

CALL_SECONDS = 10.0
"""Deadline of one unary call."""

SchedulerAddress = Annotated[
    str, typer.Option("--scheduler", metavar="HOST:PORT", envvar="PARLMESH_SCHEDULER_ADDRESS", help="the scheduler")
]
LearnerAddress = Annotated[
    str, typer.Option("--learner", metavar="HOST:PORT", envvar="PARLMESH_LEARNER_ADDRESS", help="the learner")
]
RunId = Annotated[str, typer.Option("--run", metavar="ID", help="the run; empty = the learner's only run")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON, one object per line")]

SCHEDULER_DEFAULT = "127.0.0.1:50051"
LEARNER_DEFAULT = "127.0.0.1:50052"

# gRPC's messages for a peer that was reached but not trusted; a certificate's name is checked last.
_UNTRUSTED = ("handshake failed", "verification check failed")


def security_of(context: typer.Context) -> "SecurityConfig":
    """The security settings given before the command: `parlmesh --ca ca.pem --token-file t status`."""
    from parlmesh.security import SecurityConfig

    given: dict[str, Path] = context.find_root().obj or {}
    return SecurityConfig.model_validate(given)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs one command's coroutine to its end."""
    import asyncio

    return asyncio.run(main)


def ask(
    server: "Callable[[str, SecurityConfig], AbstractAsyncContextManager[Stub]]",
    address: str,
    context: typer.Context,
    call: Callable[[Stub], Awaitable[T]],
) -> T:
    """What the server at `address` answers, with the credentials of the command line."""

    async def asked() -> T:
        async with server(address, security_of(context)) as stub:
            return await call(stub)

    return run(asked())


async def all_pages(call: Any, request: Any, field: str) -> list[Any]:
    """Everything a paged method lists; each page has its own deadline."""
    from parlmesh.rpc import pages

    listed = pages(partial(call, timeout=CALL_SECONDS), request)
    return [each async for page in listed for each in getattr(page, field)]


@asynccontextmanager
async def scheduler_at(address: str, security: "SecurityConfig") -> "AsyncIterator[SchedulerServiceAsyncStub]":
    """The scheduler's stub; errors of its calls are raised as sentences."""
    from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub

    async with _channel("scheduler", address, security) as channel:
        yield SchedulerServiceStub(channel)


@asynccontextmanager
async def learner_at(address: str, security: "SecurityConfig") -> "AsyncIterator[TrainingServiceAsyncStub]":
    """The learner's stub for runs; errors of its calls are raised as sentences."""
    from parlmesh.v1.training_service_pb2_grpc import TrainingServiceStub

    async with _channel("learner", address, security) as channel:
        yield TrainingServiceStub(channel)


@asynccontextmanager
async def models_at(address: str, security: "SecurityConfig") -> "AsyncIterator[ModelServiceAsyncStub]":
    """The learner's stub for models; errors of its calls are raised as sentences."""
    from parlmesh.v1.model_service_pb2_grpc import ModelServiceStub

    async with _channel("learner", address, security) as channel:
        yield ModelServiceStub(channel)


@asynccontextmanager
async def federations_at(address: str, security: "SecurityConfig") -> "AsyncIterator[FederationServiceAsyncStub]":
    """The learner's stub for federations; errors of its calls are raised as sentences."""
    from parlmesh.v1.federation_service_pb2_grpc import FederationServiceStub

    async with _channel("learner", address, security) as channel:
        yield FederationServiceStub(channel)


@asynccontextmanager
async def _channel(service: str, address: str, security: "SecurityConfig") -> "AsyncIterator[grpc.aio.Channel]":
    import grpc.aio

    from parlmesh.rpc import open_channel

    async with open_channel(address, security) as channel:
        try:
            yield channel
        except grpc.aio.AioRpcError as error:
            raise explained(error, service, address) from None


def explained(error: "grpc.aio.AioRpcError", service: str, address: str) -> FleetError:
    """The error as a sentence for the person at the terminal."""
    import grpc

    from parlmesh.rpc import error_from_rpc
    from parlmesh.rpc.error_statuses import says_its_reason

    details = error.details() or ""
    if says_its_reason(error):
        return error_from_rpc(error)
    if error.code() == grpc.StatusCode.UNAVAILABLE and any(words in details for words in _UNTRUSTED):
        return _untrusted(details, service, address)
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        # An open port with another protocol breaks the connection instead of refusing it.
        tls = "" if "refused" in details else "; if it uses TLS, put --ca and --token-file before the command"
        return Unavailable(
            f"no {service} answers at {address}; start a fleet with `parlmesh up --keep`"
            f" or name another address with --{service} HOST:PORT{tls}",
            address=address,
        )
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED and "Deadline Exceeded" in details:
        return DeadlineExceeded(
            f"the {service} at {address} did not answer in time; it may be overloaded or stuck", address=address
        )
    if error.code() == grpc.StatusCode.UNIMPLEMENTED:
        federation = (
            ", or a learner with mode=federation (`parlmesh federation status`)" if service == "learner" else ""
        )
        return Unavailable(
            f"the server at {address} is not a {service}, or it is an older one{federation}; check --{service}",
            reason="NOT_SERVED",
            address=address,
        )
    return error_from_rpc(error)


def _untrusted(details: str, service: str, address: str) -> FleetError:
    """Explains a failed handshake: a bad certificate, or one side without TLS."""
    if "WRONG_VERSION_NUMBER" in details:
        why = f"it does not use TLS; omit --ca, or check --{service}"
    elif "Hostname" in details or "eer name" in details:
        why = "its certificate is for another name; use an address that the certificate names"
    else:
        why = "its certificate is not from the authority in --ca, or has expired"
    return Unavailable(f"the {service} at {address} cannot be trusted: {why}", reason="SECURITY", address=address)
