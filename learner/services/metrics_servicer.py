"""MetricsService over gRPC: decode, call, encode."""

import asyncio
from typing import Any

import grpc.aio

from parlmesh.errors import InvalidInput
from parlmesh.v1 import metrics_service_pb2 as pb
from parlmesh.v1.metrics_service_pb2_grpc import MetricsServiceServicer

from ..files.curves import read_curves
from ..files.recorder import METRICS_FILE
from ..runs.runs import Runs

_DEFAULT_POINTS, _MOST_POINTS, _MOST_NAMES = 1_000, 10_000, 100

Context = grpc.aio.ServicerContext[Any, Any]


class MetricsServicer(MetricsServiceServicer):
    """MetricsService. One query reads at a time, so that many queries cost no more memory than one."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._reading = asyncio.Lock()

    async def QueryMetrics(self, request: pb.QueryMetricsRequest, context: Context) -> pb.QueryMetricsResponse:
        file, points = self._runs.get(request.run_id).config.run_dir / METRICS_FILE, _points(request)
        steps = request.first_step, request.last_step
        async with self._reading:
            curves = await asyncio.to_thread(read_curves, file, list(request.names), *steps)
        thinned = [(name, curve.thinned(points)) for name, curve in sorted(curves.items())]
        series = [pb.Series(name=name, steps=curve.steps, values=curve.values) for name, curve in thinned]
        return pb.QueryMetricsResponse(series=series)


def _points(request: pb.QueryMetricsRequest) -> int:
    if request.max_points > _MOST_POINTS:
        raise InvalidInput(f"max_points must be at most {_MOST_POINTS}, got {request.max_points}", reason="MAX_POINTS")
    if 0 < request.last_step < request.first_step:
        message = f"last_step must be 0 or at least first_step {request.first_step}, got {request.last_step}"
        raise InvalidInput(message, reason="STEP_RANGE")
    if len(request.names) > _MOST_NAMES:
        raise InvalidInput(f"at most {_MOST_NAMES} names, got {len(request.names)}", reason="NAMES")
    return request.max_points or _DEFAULT_POINTS
