"""Wires the learner together: the one place that knows which concrete classes are used."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from parlmesh.config import effective, to_yaml
from parlmesh.environments import environment_spec
from parlmesh.rpc import FleetServer, Service, open_channel
from parlmesh.telemetry import get_logger, serve_metrics
from parlmesh.v1 import experience_service_pb2_grpc, policy_service_pb2_grpc, training_service_pb2_grpc

from . import metrics
from .checkpoint import Checkpoint, CheckpointFolder
from .config import LearnerConfig, TrainingConfig
from .experience import Admission, ExperienceQueue, TrajectorySchema
from .experience_servicer import ExperienceServicer
from .fleet import FleetSource
from .policy_servicer import PolicyServicer
from .recorder import Recorder
from .registry import PolicyRegistry
from .run import TrainingRun
from .serial import SerialSource
from .trainers import policy_for, trainer_for
from .training_servicer import TrainingServicer

log = get_logger("parlmesh.learner")


@dataclass(frozen=True, slots=True)
class Parts:
    """A run and what must be closed after it."""

    run: TrainingRun
    recorder: Recorder
    found: Checkpoint | None


def build_run(config: LearnerConfig) -> Parts:
    """A run as configured, from its newest checkpoint when there is one."""
    training = config.training
    environment = environment_spec(training.environment.model_dump())
    policy = policy_for(training, environment)
    trainer = trainer_for(training, policy)
    checkpoints = CheckpointFolder(config.run_dir / "checkpoints", training.kept_checkpoints)
    found = checkpoints.newest()
    first_version = _first_version(checkpoints, training)
    max_policy_lag = 0 if config.mode == "serial" else training.max_policy_lag
    schema = TrajectorySchema(
        environment, policy.state_size, fragment_steps=training.fragment_steps, num_envs=training.num_envs
    )
    admission = Admission(config.run_id, schema, max_policy_lag=max_policy_lag, first_version=first_version)
    queue = ExperienceQueue(
        admission, max_queued=config.experience.max_queued_trajectories, max_policy_lag=max_policy_lag
    )
    recorder = Recorder(
        config.run_dir, config.run_id, f"{training.environment.id}, seed {training.seed}", training.goal_return
    )
    run = TrainingRun(
        training,
        trainer=trainer,
        registry=PolicyRegistry(config.run_id),
        queue=queue,
        checkpoints=checkpoints,
        recorder=recorder,
        first_version=first_version,
        max_policy_lag=max_policy_lag,
    )
    if found is not None:
        run.restore(found)
    return Parts(run, recorder, found)


async def serve(config: LearnerConfig, stop: asyncio.Event) -> None:
    """Trains and serves until `stop`; the policy stays served after the training has ended."""
    log.info("configured", config=effective(config))
    parts = build_run(config)
    run = parts.run
    (config.run_dir / "learner.effective.yaml").write_text(to_yaml(config))
    channel = open_channel(config.scheduler, config.security)
    fleet = FleetSource(
        channel, config.run_id, config.training, config.experience, on_change=run.wake, on_failure=run.fail
    )
    stopping = asyncio.Event()
    server = FleetServer(
        listen=config.listen,
        security=config.security,
        services=build_services(config, run, fleet.delivered, stopping),
    )
    page = serve_metrics(config.metrics)
    watcher = metrics.watch_queue(run.queue)
    try:
        port = await server.start()
        log.info("serving", address=f"{config.listen.host}:{port}", port=port, run_id=config.run_id, mode=config.mode)
        server.set_serving(True)
        if config.mode == "serial":
            await _run_serial(config, parts, stop)
        else:
            await _run_fleet(run, fleet, stop)
        await stop.wait()
    finally:
        stopping.set()
        await server.drain()
        await channel.close()
        metrics.unwatch_queue(watcher)
        parts.recorder.close()
        if page is not None:
            page.close()


async def _run_fleet(run: TrainingRun, fleet: FleetSource, stop: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as group:
        dispatching = group.create_task(fleet.run())
        ending = group.create_task(_stop_with(stop, run))
        await run.train(fleet)
        await fleet.close()
        dispatching.cancel()
        ending.cancel()


async def _run_serial(config: LearnerConfig, parts: Parts, stop: asyncio.Event) -> None:
    run, found = parts.run, parts.found
    source = SerialSource(config.training, run.registry, run.receive, on_failure=run.fail, ending=lambda: run.ending)
    if found is not None:
        await source.go_on(found.of_source, run.policy_blob(), found.version)
    async with asyncio.TaskGroup() as group:
        ending = group.create_task(_stop_with(stop, run))
        await run.train(source)
        ending.cancel()
    source.close()


async def _stop_with(stop: asyncio.Event, run: TrainingRun) -> None:
    await stop.wait()
    run.stop("the learner was told to stop")


def build_services(
    config: LearnerConfig, run: TrainingRun, on_delivered: Callable[[str], None], stopping: asyncio.Event
) -> tuple[Service, ...]:
    """The services of a run; `stopping` ends their watchers, `on_delivered` hears the task of each trajectory."""
    policies = PolicyServicer(run.registry, stopping)
    experience = ExperienceServicer(run, config.experience.max_trajectory_bytes, on_delivered)
    trainings = TrainingServicer(run, stopping)
    return (
        Service(
            "parlmesh.v1.PolicyService",
            lambda server: policy_service_pb2_grpc.add_PolicyServiceServicer_to_server(policies, server),
        ),
        Service(
            "parlmesh.v1.ExperienceService",
            lambda server: experience_service_pb2_grpc.add_ExperienceServiceServicer_to_server(experience, server),
        ),
        Service(
            "parlmesh.v1.TrainingService",
            lambda server: training_service_pb2_grpc.add_TrainingServiceServicer_to_server(trainings, server),
        ),
    )


def _first_version(checkpoints: CheckpointFolder, config: TrainingConfig) -> int:
    """Versions never go back: a restart skips past every version that may have been published since the checkpoint."""
    highest = checkpoints.highest_version
    return highest + config.checkpoint_interval_versions + 1 if highest else 1
