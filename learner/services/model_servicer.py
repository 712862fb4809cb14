"""ModelService over gRPC: decode, call, encode."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc.aio

from parlmesh.distribution.policy_messages import CHUNK_BYTES
from parlmesh.errors import InvalidInput
from parlmesh.v1 import model_service_pb2 as pb
from parlmesh.v1.model_service_pb2_grpc import ModelServiceServicer
from parlmesh.wire import struct_to_proto

from ..files.kept_models import Model, ModelFolder, to_onnx, to_safetensors
from ..runs.runs import Runs
from .page_tokens import page

Context = grpc.aio.ServicerContext[Any, Any]

_WRITERS: Mapping[int, Callable[[bytes, str], bytes]] = {
    pb.MODEL_FORMAT_UNSPECIFIED: to_safetensors,
    pb.MODEL_FORMAT_SAFETENSORS: to_safetensors,
    pb.MODEL_FORMAT_ONNX: to_onnx,
}


class ModelServicer(ModelServiceServicer):
    """ModelService. Files are read and written in threads."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        entries = [self._runs.get(request.run_id)] if request.run_id else self._runs.newest_first()
        listed = await asyncio.to_thread(lambda: [each for entry in entries for each in _listed(entry.models)])
        found, token = page(
            listed,
            lambda each: (each[0].created_time, each[0].version, each[0].run_id),
            lambda each: _model_to_proto(*each),
            size=request.page_size,
            token=request.page_token,
        )
        return pb.ListModelsResponse(models=found, next_page_token=token)

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        models = self._runs.get(request.run_id).models
        model = await asyncio.to_thread(models.get, request.version)
        return pb.GetModelResponse(model=_model_to_proto(model, models.promoted))

    async def PromoteModel(self, request: pb.PromoteModelRequest, context: Context) -> pb.PromoteModelResponse:
        models = self._runs.get(request.run_id).models
        model = await asyncio.to_thread(models.promote, _named(request.version))
        return pb.PromoteModelResponse(model=_model_to_proto(model, model.version))

    async def DeleteModel(self, request: pb.DeleteModelRequest, context: Context) -> pb.DeleteModelResponse:
        await asyncio.to_thread(self._runs.get(request.run_id).models.delete, _named(request.version))
        return pb.DeleteModelResponse()

    async def ExportModel(
        self, request: pb.ExportModelRequest, context: Context
    ) -> AsyncIterator[pb.ExportModelResponse]:
        models, write = self._runs.get(request.run_id).models, _writer(request.format)
        model = await asyncio.to_thread(models.get, request.version)
        blob = await asyncio.to_thread(models.blob, model)
        data = await asyncio.to_thread(write, blob, str(model.metadata.get("observation_dtype", "float32")))
        for start in range(0, len(data), CHUNK_BYTES):
            yield pb.ExportModelResponse(data=data[start : start + CHUNK_BYTES])


def _named(version: int) -> int:
    if not version:
        raise InvalidInput("version must be >= 1, got 0: name the model", reason="VERSION_NEEDED")
    return version


def _writer(model_format: int) -> Callable[[bytes, str], bytes]:
    if model_format not in _WRITERS:
        message = f"format must be SAFETENSORS or ONNX, got {model_format}; torch has dropped TorchScript"
        raise InvalidInput(message, reason="FORMAT")
    return _WRITERS[model_format]


def _listed(models: ModelFolder) -> list[tuple[Model, int]]:
    promoted = models.promoted
    return [(model, promoted) for model in models.newest_first()]


def _model_to_proto(model: Model, promoted: int) -> pb.Model:
    message = pb.Model(
        run_id=model.run_id,
        version=model.version,
        promoted=model.version == promoted,
        size_bytes=model.size_bytes,
        digest=bytes.fromhex(model.digest),
        metadata=struct_to_proto(model.metadata),
    )
    message.create_time.FromNanoseconds(round(model.created_time * 1e9))
    return message
