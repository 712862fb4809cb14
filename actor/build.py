"""The one place where an actor's parts are wired together."""

import os
import random
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from parlmesh.blob_transfer import Exchange
from parlmesh.config import load_source
from parlmesh.distribution.policy_download import policy_stub
from parlmesh.errors import ConfigError
from parlmesh.exception_text import sentence_at
from parlmesh.federation.virtual_nodes import LABEL, nodes_of
from parlmesh.function_tasks import load_tasks
from parlmesh.handlers import Handler, RunsIn
from parlmesh.plugins import load_plugins
from parlmesh.policies import load_policy
from parlmesh.rpc import open_channel
from parlmesh.rpc.channel.tls_diagnosis import refusal
from parlmesh.security import SecurityConfig
from parlmesh.security.extra import require_extra
from parlmesh.v1.blob_service_pb2_grpc import BlobServiceStub
from parlmesh.v1.fleet_service_pb2_grpc import FleetServiceStub

from .config import ActorConfig
from .federation.federation_client import FederationLink
from .federation.local_nodes import LearningTasks, Participants
from .federation.privacy_floor import PrivacyFloor
from .handlers.builtin import HANDLERS, HandlerResources
from .learner.policy_cache import PolicyCache
from .learner.policy_client import PolicyLink
from .learner.site_relay import Relay
from .learner.trajectory_uploads import Uploads, upload_stream
from .metrics import ActorMetrics
from .session.actor_identity import ActorIdentity
from .session.background_work import Attendance
from .session.scheduler_stream import Uplink
from .session.session import ActorSession


def identities_of(config: ActorConfig) -> list[ActorIdentity]:
    """One identity per actor of the process."""
    node_id = config.node_id or _certified(config.security) or socket.gethostname()
    actor_id = config.actor_id or f"{node_id}-{os.getpid()}"
    incarnation = config.incarnation or time.time_ns()
    names = [actor_id] if config.actors == 1 else [f"{actor_id}-{index}" for index in range(config.actors)]
    # Virtual nodes are found by their host's name, so each host needs its own.
    return [
        ActorIdentity(name if config.virtual_nodes else node_id, name, incarnation, from_clock=not config.incarnation)
        for name in names
    ]


def _certified(security: SecurityConfig) -> str:
    """The name in this process's certificate, the only one it may act under; empty without a certificate."""
    if security.certificate is None:
        return ""
    require_extra()
    from parlmesh.security.certificates import identity_of
    from parlmesh.security.pem_files import read_certificates

    identity = identity_of(read_certificates(security.certificate)[0])
    return identity.name if identity is not None else ""


def make_handlers(config: ActorConfig, resources: HandlerResources) -> dict[str, Handler]:
    """The handlers to offer, by kind; ConfigError names a kind or a module that does not exist."""
    known: dict[str, Callable[[], Handler]] = {kind: partial(make, resources) for kind, make in HANDLERS.items()}
    known |= {kind: partial(_installed, kind, source) for kind, source in config.handlers.items()}
    for kind, function in load_tasks(config.tasks).items():
        if kind in known:
            raise ConfigError(f"the kind {kind!r} of a function in tasks exists already; choose another kind")
        known[kind] = partial(_checked, kind, function, f"the task {kind!r}")
    for kind, found in load_plugins(config.plugins).handlers.items():
        if kind in known:
            raise ConfigError(f"the kind {kind!r} of a plug-in's handler exists already; choose another kind")
        known[kind] = partial(_checked, kind, found, f"the plugin's handler {kind!r}")
    for kind in config.kinds:
        if kind not in known:
            raise ConfigError(f"kinds has {kind!r}; installed are {', '.join(sorted(known))}", kind=kind)
    return {kind: known[kind]() for kind in config.kinds or known}


def _installed(kind: str, source: str) -> Handler:
    found = load_source(f"handlers.{kind}", source)
    return _checked(kind, found, f"handlers.{kind} = {source!r}")


def _checked(kind: str, found: Any, name: str) -> Handler:
    try:
        handler = found() if isinstance(found, type) else found
    except Exception as error:
        raise ConfigError(f"{name} cannot be made: {sentence_at(error)}") from error
    if not isinstance(handler, Handler) or handler.runs_in not in set(RunsIn):
        places = ", ".join(RunsIn)
        raise ConfigError(f"{name} needs kind, run and runs_in, one of {places}")
    if handler.kind != kind:
        raise ConfigError(f"{name} is of the kind {handler.kind!r}")
    return handler


async def build(
    config: ActorConfig, stack: AsyncExitStack, metrics: ActorMetrics, metrics_port: int = 0
) -> list[tuple[ActorSession, Uplink]]:
    """Makes and enters everything a process runs; the stack closes it. `metrics_port` is told to the scheduler."""
    scheduler = await stack.enter_async_context(
        open_channel(config.scheduler, config.security, max_message_bytes=config.limits.message_bytes)
    )
    # Policies and trajectories travel apart from the heartbeats.
    learner = await stack.enter_async_context(
        open_channel(config.learner, config.security, max_message_bytes=config.limits.message_bytes)
    )
    exchange = Exchange(
        BlobServiceStub(scheduler),
        config.scheduler,
        cache_bytes=config.limits.blob_bytes,
        call_seconds=config.limits.blob_seconds,
        keeps_results=True,
    )
    rng = random.Random()  # noqa: S311  # spreads reconnections; nothing secret depends on it
    relay = await _relay(config, stack, metrics, rng)
    policies = await stack.enter_async_context(
        PolicyCache(
            policy_stub(learner),
            load_policy,
            limits=config.limits,
            metrics=metrics,
            rng=rng,
            encoding=config.policy_encoding,
            relay=relay,
        )
    )
    identities = identities_of(config)
    hosts = sorted({identity.node_id for identity in identities})
    federations = await stack.enter_async_context(FederationLink(learner, hosts, config.limits, rng))
    tasks = LearningTasks(config.learning_tasks)
    floor = PrivacyFloor(config.privacy)
    labels = {**config.labels, **({LABEL: str(config.virtual_nodes)} if config.virtual_nodes else {})}
    members: list[tuple[ActorSession, Uplink]] = []
    for identity in identities:
        uploads = await stack.enter_async_context(
            Uploads(
                upload_stream(learner), limits=config.limits, metrics=metrics, rng=rng, on_outlived=identity.outlive
            )
        )
        link = PolicyLink(policies, policy_seconds=config.limits.policy_seconds)
        nodes = nodes_of(identity.node_id, config.virtual_nodes)
        participants = Participants(nodes, federations, tasks, floor)
        handlers = make_handlers(config, HandlerResources(identity, link, uploads, metrics, participants))
        await stack.enter_async_context(Attendance(identity.node_id, handlers.values()))
        session = await stack.enter_async_context(
            ActorSession(
                identity,
                handlers,
                slots=config.slots,
                labels=labels,
                limits=config.limits,
                metrics=metrics,
                policy_version=lambda: policies.newest_version,
                on_reset=policies.reset,
                exchange=exchange,
                metrics_port=metrics_port,
            )
        )
        uplink = Uplink(
            session,
            FleetServiceStub(scheduler),
            scheduler=config.scheduler,
            limits=config.limits,
            metrics=metrics,
            rng=rng,
            refusal=partial(refusal, config.scheduler, config.security),
        )
        members.append((session, uplink))
    return members


async def _relay(config: ActorConfig, stack: AsyncExitStack, metrics: ActorMetrics, rng: random.Random) -> Relay | None:
    """The relay of this site, if it has one."""
    if not config.relay:
        return None
    channel = await stack.enter_async_context(
        open_channel(config.relay, config.security, max_message_bytes=config.limits.message_bytes)
    )
    relay = Relay(policy_stub(channel), channel, limits=config.limits, metrics=metrics, rng=rng)
    return await stack.enter_async_context(relay)
