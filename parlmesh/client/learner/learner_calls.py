"""A client's calls to the learner: pausing a run, waiting for the fleet to use the newest policy. Trains nothing."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import grpc.aio

from parlmesh.errors import DeadlineExceeded, InvalidInput
from parlmesh.rpc import error_from_rpc
from parlmesh.v1 import policy_service_pb2 as pb
from parlmesh.v1 import training_service_pb2
from parlmesh.v1.policy_service_pb2_grpc import PolicyServiceStub
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceStub

from ..fleet_info import ActorInfo, ActorState

_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class PolicyUpdate:
    """A policy version that the fleet acts with."""

    run_id: str
    version: int
    actors: int
    """READY actors that act with a policy, all with this version or a newer one."""
    seconds: float
    """How long it took, from the call."""
    trajectories: int = 0
    """Trajectories of the given experience that were uploaded and accepted."""
    waiting_steps: int = 0
    """Given steps that do not fill a trajectory yet; later steps are appended to them."""


async def wait_for_policy(
    channel: grpc.aio.Channel,
    list_actors: Callable[[], Awaitable[Sequence[ActorInfo]]],
    *,
    run_id: str,
    seconds: float,
) -> PolicyUpdate:
    """Asks the learner for its newest version, then looks at the actors until none acts with an older one.

    Actors report their version with every heartbeat; those that never used a policy are not waited for.
    """
    if not seconds > 0:
        raise InvalidInput(f"timeout is {seconds!r} s; it must be more than 0 s", reason="INVALID_TIMEOUT")
    loop = asyncio.get_running_loop()
    started = loop.time()
    behind: list[ActorInfo] = []
    try:
        async with asyncio.timeout(seconds):
            header = await _newest(channel, run_id, seconds)
            while True:
                actors = [actor for actor in await list_actors() if _acts(actor)]
                behind = [actor for actor in actors if actor.policy_version < header.version]
                if not behind:
                    return PolicyUpdate(header.run_id, header.version, len(actors), loop.time() - started)
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        names = ", ".join(actor.actor_id for actor in behind[:3])
        raise DeadlineExceeded(
            f"{len(behind)} actors act with an older policy after {seconds:g} s, e.g. {names}"
            if behind
            else f"the learner named no policy within {seconds:g} s",
            run_id=run_id,
        ) from None


def _acts(actor: ActorInfo) -> bool:
    return actor.state is ActorState.READY and actor.policy_version > 0


async def _newest(channel: grpc.aio.Channel, run_id: str, seconds: float) -> pb.PolicyHeader:
    call = PolicyServiceStub(channel).WatchPolicy(pb.WatchPolicyRequest(run_id=run_id), timeout=seconds)
    try:
        response = await call.read()
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from None
    finally:
        call.cancel()
    if not isinstance(response, pb.WatchPolicyResponse):
        raise DeadlineExceeded(f"the learner ended the watch of run {run_id!r} without a policy", run_id=run_id)
    return response.header


async def pause_run(channel: grpc.aio.Channel, run_id: str, *, seconds: float) -> None:
    """Stops collecting and training; the policy stays served."""
    request = training_service_pb2.PauseTrainingRequest(run_id=run_id)
    try:
        await TrainingServiceStub(channel).PauseTraining(request, timeout=seconds)
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from None


async def resume_run(channel: grpc.aio.Channel, run_id: str, *, seconds: float) -> None:
    """Continues a paused run."""
    request = training_service_pb2.ResumeTrainingRequest(run_id=run_id)
    try:
        await TrainingServiceStub(channel).ResumeTraining(request, timeout=seconds)
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from None
