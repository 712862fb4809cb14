"""Trainings of a learner, stopped for a while and let go on."""

import grpc.aio

from parlmesh.rpc import error_from_rpc
from parlmesh.v1 import training_service_pb2 as pb
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceStub


async def pause_run(channel: grpc.aio.Channel, run_id: str, *, seconds: float) -> None:
    """Stops collecting and training; the policy stays served."""
    try:
        await TrainingServiceStub(channel).PauseTraining(pb.PauseTrainingRequest(run_id=run_id), timeout=seconds)
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from None


async def resume_run(channel: grpc.aio.Channel, run_id: str, *, seconds: float) -> None:
    """Goes on with a paused run."""
    try:
        await TrainingServiceStub(channel).ResumeTraining(pb.ResumeTrainingRequest(run_id=run_id), timeout=seconds)
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from None
