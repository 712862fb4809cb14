"""A page over a real scheduler and a scripted learner, in this process."""

import asyncio
import http.client
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from parlmesh.dashboard.access import Access
from parlmesh.dashboard.app import Site, build
from parlmesh.dashboard.config import DashboardConfig
from parlmesh.dashboard.fleet_calls import Fleet
from parlmesh.dashboard.fleet_history import History
from parlmesh.dashboard.live_updates import Pulse
from parlmesh.dashboard.serve import listening, server_of
from parlmesh.rpc.server import Service
from parlmesh.v1 import federation_service_pb2 as federation_pb
from parlmesh.v1 import metrics_service_pb2 as metrics_pb
from parlmesh.v1 import model_service_pb2 as model_pb
from parlmesh.v1 import training_service_pb2 as training_pb
from parlmesh.v1.federation_service_pb2_grpc import FederationServiceServicer, add_FederationServiceServicer_to_server
from parlmesh.v1.metrics_service_pb2_grpc import MetricsServiceServicer, add_MetricsServiceServicer_to_server
from parlmesh.v1.model_service_pb2_grpc import ModelServiceServicer, add_ModelServiceServicer_to_server
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceServicer, add_TrainingServiceServicer_to_server

SECONDS = 60.0


class FakeLearning(TrainingServiceServicer, MetricsServiceServicer, ModelServiceServicer, FederationServiceServicer):
    """A learner with one run, two models and a federation of one round."""

    def __init__(self) -> None:
        progress = training_pb.TrainingProgress(
            steps=500, step_budget=1000, policy_version=12, episode_return=41.5, evaluation_return=44.0,
            goal_return=50.0, policy_lag=1.25, learner_idle_ratio=0.4, actor_idle_ratio=0.1,
        )  # fmt: skip
        self.training = training_pb.Training(run_id="cart", state=training_pb.TRAINING_STATE_RUNNING, progress=progress)
        self.training.configuration.update({"environment": {"id": "CartPole-v1"}})
        self.models = [model_pb.Model(run_id="cart", version=version, promoted=version == 3) for version in (9, 3)]
        self.steered: list[str] = []
        self.curves = {
            "return/episodes": [1.0, 2.0, float("nan")],
            "return/evaluation": [3.0, 4.0, 5.0],
            "x/zero": [0.0] * 3,
        }
        self.federation = federation_pb.Federation(
            federation_id="fed", state=federation_pb.FEDERATION_STATE_RUNNING, round=2, aggregated_rounds=1
        )
        self.rounds = [
            federation_pb.Round(
                number=1,
                state=federation_pb.ROUND_STATE_AGGREGATED,
                seconds=1.5,
                policy_version=1,
                updates=[
                    federation_pb.UpdateRecord(node_id="edge-1", node_weight=1.0, samples=10, counted_samples=10),
                    federation_pb.UpdateRecord(node_id="edge-2", refusal="NORM_TOO_LARGE", message="norm is 9"),
                ],
            )
        ]

    @property
    def services(self) -> list[Service]:
        return [
            Service("parlmesh.v1.TrainingService", lambda s: add_TrainingServiceServicer_to_server(self, s)),
            Service("parlmesh.v1.MetricsService", lambda s: add_MetricsServiceServicer_to_server(self, s)),
            Service("parlmesh.v1.ModelService", lambda s: add_ModelServiceServicer_to_server(self, s)),
            Service("parlmesh.v1.FederationService", lambda s: add_FederationServiceServicer_to_server(self, s)),
        ]

    async def ListTrainings(self, request: Any, context: Any) -> training_pb.ListTrainingsResponse:
        return training_pb.ListTrainingsResponse(trainings=[self.training])

    async def PauseTraining(self, request: Any, context: Any) -> training_pb.PauseTrainingResponse:
        self.steered.append(f"pause {request.run_id}")
        return training_pb.PauseTrainingResponse(training=self.training)

    async def QueryMetrics(self, request: Any, context: Any) -> metrics_pb.QueryMetricsResponse:
        lines = self.curves.items()
        series = [metrics_pb.Series(name=name, steps=[1, 2, 3], values=values) for name, values in lines]
        return metrics_pb.QueryMetricsResponse(series=series)

    async def ListModels(self, request: Any, context: Any) -> model_pb.ListModelsResponse:
        return model_pb.ListModelsResponse(models=self.models)

    async def PromoteModel(self, request: Any, context: Any) -> model_pb.PromoteModelResponse:
        for model in self.models:
            model.promoted = model.version == request.version
        return model_pb.PromoteModelResponse(model=self.models[0])

    async def GetFederation(self, request: Any, context: Any) -> federation_pb.GetFederationResponse:
        return federation_pb.GetFederationResponse(federation=self.federation)

    async def ListRounds(self, request: Any, context: Any) -> federation_pb.ListRoundsResponse:
        return federation_pb.ListRoundsResponse(rounds=self.rounds)


@dataclass
class Answer:
    """The page's response to one request."""

    status: int
    text: str
    headers: dict[str, str] = field(default_factory=dict)


class PageClient:
    """A client that keeps cookies and does not follow redirects."""

    def __init__(self, url: str, site: Site) -> None:
        self.url = url
        self.site = site
        self.cookie = ""

    async def get(self, path: str, **headers: str) -> Answer:
        return await asyncio.to_thread(self._ask, "GET", path, None, headers)

    async def post(self, path: str, form: dict[str, Any], **headers: str) -> Answer:
        return await asyncio.to_thread(self._ask, "POST", path, urlencode(form, doseq=True), headers)

    def _ask(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> Answer:
        where = urlsplit(self.url)
        connection = http.client.HTTPConnection(where.netloc, timeout=SECONDS)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookie:
            given["cookie"] = self.cookie
        connection.request(method, where.path + path, body, given)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        if response.getheader("set-cookie"):
            self.cookie = str(response.getheader("set-cookie")).partition(";")[0]
        return Answer(response.status, text, {name.lower(): value for name, value in response.getheaders()})


@asynccontextmanager
async def page(**settings: Any) -> AsyncIterator[PageClient]:
    """A page that is served, and a client of it."""
    config = DashboardConfig(port=0, **settings)
    fleet, history = Fleet(config), History(config.history)
    site = Site(config, Access(config), fleet, Pulse(fleet, history))
    server = server_of(config, build(site))
    with listening(config) as listener:
        port = listener.getsockname()[1]
        looking = asyncio.create_task(site.pulse.run())
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield PageClient(f"http://127.0.0.1:{port}{config.prefix}/", site)
        finally:
            site.stopping = server.should_exit = True
            await asyncio.wait_for(serving, SECONDS)
            looking.cancel()
            await asyncio.wait([looking])
            await fleet.close()
            history.close()
