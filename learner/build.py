"""Wires the learner together: the one place that knows which concrete classes are used."""

import asyncio
import contextlib
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc.aio

from parlmesh.algorithm_choice import check_algorithm, check_device, policy_for, trainer_for
from parlmesh.config import effective
from parlmesh.environments import environment_spec
from parlmesh.errors import ConfigError, NotFound
from parlmesh.plugins import load_plugins
from parlmesh.policies import PolicySpec
from parlmesh.rpc.server import Service
from parlmesh.rpc.server.service_registration import service_of
from parlmesh.telemetry import get_logger
from parlmesh.types import EnvironmentSpec
from parlmesh.upload_files import folder_of
from parlmesh.v1 import experience_service_pb2, metrics_service_pb2, model_service_pb2, training_service_pb2

from .config import MEBIBYTE, LearnerConfig, TrainingConfig
from .experience import Bounds, ExperienceQueue, TrajectorySchema
from .experience.rollout_demand import shares
from .federation.federations import Federations
from .federation.servicer import FederationServicer
from .files.checkpoint import Checkpoint, CheckpointFolder
from .files.kept_models import ModelFolder
from .files.recorder import Recorder
from .files.weights_and_biases import open_tracker
from .policies.league import League
from .policies.registry import PolicyRegistry
from .policies.version_numbers import Versions
from .ranks.rank_setup import Members, check_processes, several
from .runs.live_run import LiveRun
from .runs.runs import Runs
from .runs.settings_check import MOST_TRAJECTORY_BYTES, changed_settings, check_feasible, trajectory_bytes
from .runs.training_loop import TrainingRun
from .services.experience_servicer import ExperienceServicer
from .services.metrics_servicer import MetricsServicer
from .services.model_servicer import ModelServicer
from .services.policy_servicer import PolicyServicer
from .services.training_servicer import TrainingServicer
from .services.upload_folder import UploadFolder

log = get_logger("parlmesh.learner")

EFFECTIVE = "learner.effective.yaml"


@dataclass(frozen=True, slots=True)
class Parts:
    """A run and the resources to close after it."""

    run: TrainingRun
    recorder: Recorder
    found: Checkpoint | None
    # Set when several processes train the run.
    members: Members | None = None


def build_run(
    config: LearnerConfig, registry: PolicyRegistry | None = None, models: ModelFolder | None = None
) -> Parts:
    """A run as configured, from its newest checkpoint if there is one. A failure leaves nothing open, because a run
    that waits for the disk is built again and again."""
    with contextlib.ExitStack() as undo:
        parts = _build_run(config, registry, models, undo)
        undo.pop_all()
    return parts


def _build_run(
    config: LearnerConfig, registry: PolicyRegistry | None, models: ModelFolder | None, undo: contextlib.ExitStack
) -> Parts:
    training, plugins = config.training, load_plugins(config.plugins)
    environment = environment_spec(training.environment.model_dump())
    policy = policy_for(training, environment)
    checkpoints = CheckpointFolder(config.run_dir / "checkpoints", training.kept_checkpoints)
    checkpoints.tidy()
    found = checkpoints.newest()
    versions = Versions(
        config.run_dir, checkpoint=checkpoints.highest_version, unreserved=training.checkpoint_interval_versions
    )
    registry = registry or PolicyRegistry(config.run_id)
    registry.run_uid = versions.uid
    max_policy_lag = 0 if config.mode == "serial" else training.max_policy_lag
    schema = schema_for(config, environment, policy)
    check_feasible(config, policy, schema)
    check_processes(training)
    members, ranked = several(config, policy, max_policy_lag)
    if members is not None:
        undo.callback(members.close)
    trainer = trainer_for(
        training, policy, environment, plugins.algorithms, max_policy_lag=max_policy_lag, ranked=ranked
    )
    queue = ExperienceQueue(
        config.run_id,
        schema,
        max_queued=config.experience.max_queued_trajectories,
        max_policy_lag=max_policy_lag,
        first_version=versions.first,
        run_uid=versions.uid,
    )
    settings = effective(training)
    tracker = open_tracker(config.tracking.wandb, config.run_id, config.run_dir, settings)
    title = f"{training.environment.id}, seed {training.seed}"
    recorder = Recorder(config.run_dir, config.run_id, title, training.goal_return, tracker, settings)
    undo.callback(recorder.close)
    league: League | None = None
    if environment.opposed:
        league = League(training.opponents, registry, config.run_dir / "opponents", training.seed)
        league.recall()
    run = TrainingRun(
        training,
        trainer=trainer,
        registry=registry,
        queue=queue,
        checkpoints=checkpoints,
        models=models or ModelFolder(config.run_dir / "models", config.run_id, training.kept_models),
        recorder=recorder,
        versions=versions,
        max_policy_lag=max_policy_lag,
        about=_about(training, environment),
        league=league,
    )
    if found is not None:
        try:
            run.restore(found)
        except Exception as error:
            folder = checkpoints.path / f"v{found.version:08d}"
            why = changed_settings(config.run_dir / EFFECTIVE, settings) or f"{type(error).__name__}: {error}"
            message = (
                f"the checkpoint {folder} is of another configuration ({why}):"
                " choose another run_dir, or the settings it was made with"
            )
            raise ConfigError(message, key="run_dir") from error
    return Parts(run, recorder, found, members)


def _about(training: TrainingConfig, environment: EnvironmentSpec) -> dict[str, Any]:
    """Metadata of every model of a run."""
    return {
        "environment": training.environment.id,
        "algorithm": training.algorithm,
        "network": "tabular" if training.algorithm == "q_learning" else training.network,
        "seed": training.seed,
        "observation_dtype": environment.observation_dtype,
    }


def schema_for(config: LearnerConfig, environment: EnvironmentSpec, policy: PolicySpec) -> TrajectorySchema:
    """The columns of a run's trajectories, and how large their numbers may be."""
    training, limits = config.training, config.experience
    return TrajectorySchema(
        environment,
        policy.state_size,
        bounded_actions=policy.bounded,
        trajectory_steps=training.trajectory_steps,
        num_envs=training.num_envs,
        earned=training.reward_discount is not None,
        searched=training.search.simulations > 0,
        bounds=Bounds(limits.max_reward, limits.max_observation, limits.max_log_prob),
    )


def check_training(config: LearnerConfig, training: TrainingConfig) -> None:
    """Raises an error if these settings cannot work in a learner, if that can be found without starting a run."""
    config = with_divided_batches(config.model_copy(update={"training": training}))
    check_algorithm(training, load_plugins(config.plugins).algorithms)
    environment = environment_spec(training.environment.model_dump())
    policy = policy_for(training, environment)
    check_feasible(config, policy, schema_for(config, environment, policy))
    check_device(training)
    check_processes(training)


def with_divided_batches(config: LearnerConfig) -> LearnerConfig:
    """Gives each slot fewer environments and each batch more trajectories if that keeps more slots busy."""
    training = config.training
    num_envs, batch = shares(
        slots=training.slots,
        batch=training.batch_trajectories,
        max_policy_lag=training.max_policy_lag,
        num_envs=training.num_envs,
    )
    if config.mode != "fleet" or num_envs == training.num_envs:
        return config
    log.info("batch_divided", slots=training.slots, num_envs=num_envs, batch_trajectories=batch)
    update = {"num_envs": num_envs, "batch_trajectories": batch}
    return config.model_copy(update={"training": training.model_copy(update=update)})


def with_size_limits(config: LearnerConfig) -> LearnerConfig:
    """Raises size limits to the needs of the configured run, except those that were set."""
    try:
        load_plugins(config.plugins)
        environment = environment_spec(config.training.environment.model_dump())
        policy = policy_for(config.training, environment)
        needed = trajectory_bytes(schema_for(with_divided_batches(config), environment, policy))
    except Exception:
        # Building the run reports this error.
        return config
    if not config.experience.max_trajectory_bytes < needed <= MOST_TRAJECTORY_BYTES:
        return config
    update: dict[str, Any] = {}
    if "max_trajectory_bytes" not in config.experience.model_fields_set:
        update["experience"] = config.experience.model_copy(update={"max_trajectory_bytes": needed})
    if "max_message_bytes" not in config.listen.model_fields_set:
        message_bytes = max(config.listen.max_message_bytes, needed + MEBIBYTE)
        update["listen"] = config.listen.model_copy(update={"max_message_bytes": message_bytes})
    return config.model_copy(update=update)


def build_runs(config: LearnerConfig, channel: grpc.aio.Channel) -> Runs:
    """The runs of a learner; `channel` leads to its scheduler."""

    def launch(settings: LearnerConfig, registry: PolicyRegistry, models: ModelFolder) -> LiveRun:
        settings = with_divided_batches(settings)
        parts = build_run(settings, registry, models)
        return LiveRun(settings, parts.run, parts.recorder, parts.found, channel, parts.members)

    return Runs(config, launch=launch, check=partial(check_training, config))


def build_federations(config: LearnerConfig, channel: grpc.aio.Channel) -> Federations:
    """The federations of a learner, those on disk included."""
    return Federations(config.run_dir / "federations", channel, config.federations)


def build_services(
    config: LearnerConfig, runs: Runs | None, stopping: asyncio.Event, federations: Federations | None = None
) -> tuple[Service, ...]:
    """The learner's services, without those for runs if it has none; `stopping` ends their streams."""
    found = runs.registry if runs is not None else _no_run
    if federations is not None:
        # Federations have policies too.
        found = partial(federations.policies, otherwise=found)
    services = [PolicyServicer(found, stopping).service]
    if federations is not None:
        services.append(FederationServicer(federations).service)
    if runs is not None:
        experience = ExperienceServicer(
            runs,
            config.experience.max_trajectory_bytes,
            stopping,
            message_bytes=config.listen.max_message_bytes,
            folder=UploadFolder(folder_of(config.run_dir) if config.experience.shared_memory else None),
        )
        services += (
            service_of(
                experience_service_pb2.DESCRIPTOR,
                "ExperienceService",
                experience,
                reads_encoded=("UploadTrajectories",),
            ),
            service_of(training_service_pb2.DESCRIPTOR, "TrainingService", TrainingServicer(runs, stopping)),
            service_of(model_service_pb2.DESCRIPTOR, "ModelService", ModelServicer(runs)),
            service_of(metrics_service_pb2.DESCRIPTOR, "MetricsService", MetricsServicer(runs)),
        )
    return tuple(services)


def _no_run(run_id: str) -> PolicyRegistry:
    raise NotFound(f"run {run_id!r} is not here; this learner has no runs, and no federation of that name has a policy")
