"""Turns the settings of `parlmesh up` into one configuration per process. Starts nothing and opens no port."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from parlmesh.config import Config
from parlmesh.config.effective_config import MASK, effective
from parlmesh.config.model import Port
from parlmesh.errors import ConfigError
from parlmesh.processes import merged
from parlmesh.security import SecurityConfig

HOST = "127.0.0.1"
DEFAULT_ENVIRONMENT = "CartPole-v1"
RUN_ID = r"[A-Za-z0-9][A-Za-z0-9._-]*"


class PortsConfig(Config):
    """Ports of the fleet on this machine; 0 = any free port."""

    scheduler: Port = 50051
    """gRPC port of the scheduler."""
    learner: Port = 50052
    """gRPC port of the learner."""
    metrics: Port = 9101
    """First metrics port: scheduler, then learner, then one per actor."""
    dashboard: Port = 8700
    """Port of the web page; if it is taken, any free port is used."""


class UpConfig(Config):
    """A fleet on one machine. The sections `training`, `learner`, `actor` and `scheduler` hold keys of the services."""

    run_id: str = Field(default="", max_length=128, pattern=rf"^({RUN_ID})?$")
    """Name of the run and of its directory; empty = made from the environment and the time."""
    runs_dir: Path = Path("runs")
    """Where run directories are created."""
    actors: int = Field(default=2, ge=1, le=256)
    """Actor processes."""
    serial: bool = False
    """Train in one process, without scheduler and actors."""
    plugins: tuple[str, ...] = ()
    """Plug-ins of the learner and of every actor: module:attribute, file.py:attribute, or an installed name."""
    dashboard: bool = True
    """Also show the fleet in the browser; needs the `dashboard` extra."""
    ports: PortsConfig = PortsConfig()
    security: SecurityConfig = SecurityConfig()
    """How this command connects to the fleet."""
    training: dict[str, Any] = Field(default_factory=dict)
    """The learner's `training` section, e.g. training.seed."""
    learner: dict[str, Any] = Field(default_factory=dict)
    """Other keys of the learner."""
    actor: dict[str, Any] = Field(default_factory=dict)
    """Keys of every actor."""
    scheduler: dict[str, Any] = Field(default_factory=dict)
    """Keys of the scheduler."""


@dataclass(frozen=True)
class Session:
    """How `parlmesh up` shows its progress and ends."""

    keep: bool = False
    """The fleet keeps running after the run."""
    plain: bool = False
    """Lines instead of the live table."""
    as_json: bool = False
    """Print the result as one JSON object on stdout."""
    again: tuple[str, ...] = ()
    """Options of this command line to repeat in suggested commands."""


@dataclass(frozen=True)
class RunPaths:
    """The run directory and its files."""

    root: Path

    @property
    def settings(self) -> Path:
        """The settings of `up` itself, which `--resume` reads."""
        return self.root / "up.yaml"

    @property
    def incarnations(self) -> Path:
        """The newest incarnation of every actor, so that a resumed run repeats no seeds."""
        return self.root / "incarnations.yaml"

    def service(self, name: str) -> Path:
        """The configuration file of a process."""
        return self.root / f"{name}.yaml"

    def log(self, name: str) -> Path:
        """The log file of a process."""
        return self.root / "logs" / f"{name}.log"


def with_own_goal(training: Mapping[str, Any]) -> dict[str, Any]:
    """The section with no goal if it names another environment than the default goal is for."""
    if "goal_return" in training or _environment_in(training) == DEFAULT_ENVIRONMENT:
        return dict(training)
    return {**training, "goal_return": None}


def environment_id(config: UpConfig) -> str:
    """The environment to train on."""
    return _environment_in(config.training)


def _environment_in(training: Mapping[str, Any]) -> str:
    environment = training.get("environment")
    named = environment.get("id") if isinstance(environment, Mapping) else environment
    return str(named or DEFAULT_ENVIRONMENT)


def fresh_run_id(environment: str, now: datetime) -> str:
    """A run id from environment and time, such as cartpole-v1-20260102-120000."""
    slug = re.sub(r"[^a-z0-9]+", "-", environment.lower()).strip("-") or "run"
    return f"{slug}-{now:%Y%m%d-%H%M%S}"


def training_settings(config: UpConfig) -> dict[str, Any]:
    """The learner's training section; the default goal applies only to the default environment."""
    return with_own_goal(config.training)


def actor_name(index: int) -> str:
    """The child and actor id of the index-th actor."""
    return f"actor-{index}"


def scheduler_settings(config: UpConfig, paths: RunPaths, port: int) -> dict[str, Any]:
    """The scheduler's configuration."""
    _check_port("scheduler", config.scheduler, port)
    given = {
        "listen": {"host": HOST, "port": port},
        "metrics": {"port": _metrics_port(config, 0)},
        "store": {"kind": "sqlite", "path": str(paths.root / "scheduler.sqlite")},
        # Finished rollouts are of little interest, and `parlmesh up` may run for weeks.
        "retention": {"max_tasks": 2000},
    }
    return merged(given, config.scheduler)


def learner_settings(config: UpConfig, paths: RunPaths, port: int, scheduler: str) -> dict[str, Any]:
    """The learner's configuration; no scheduler address means serial."""
    _check_port("learner", config.learner, port)
    given: dict[str, Any] = {
        "mode": "fleet" if scheduler else "serial",
        "listen": {"host": HOST, "port": port},
        "metrics": {"port": _metrics_port(config, 1)},
        "run_dir": str(paths.root),
        "run_id": paths.root.name,
        # A fleet that is started for a run continues it, however it ended before.
        "reopen_ended": True,
        "training": training_settings(config),
        "plugins": list(config.plugins),
    }
    if scheduler:
        given["scheduler"] = scheduler
        # The learner sizes its batches so that none of these slots is idle.
        slots = config.actor.get("slots", 1)
        # The actor itself refuses an impossible number.
        given["training"].setdefault("slots", config.actors * (max(0, slots) if isinstance(slots, int) else 1))
    return merged(given, config.learner)


def _check_port(service: str, given: Mapping[str, Any], port: int) -> None:
    """Refuses a port that the other processes would not dial."""
    listen = given.get("listen")
    wanted = listen.get("port", port) if isinstance(listen, Mapping) else port
    if wanted != port:
        raise ConfigError(
            f"{service}.listen.port is {wanted}, where the fleet's other processes do not look for it; "
            f"set ports.{service} (--port-{service})"
        )


def actor_settings(config: UpConfig, index: int, scheduler: str, learner: str) -> dict[str, Any]:
    """An actor's configuration, without its incarnation."""
    given = {
        "actor_id": actor_name(index),
        "scheduler": scheduler,
        "learner": learner,
        "metrics": {"port": _metrics_port(config, 2 + index)},
        "plugins": list(config.plugins),
    }
    return merged(given, config.actor)


def dashboard_settings(config: UpConfig, paths: RunPaths, port: int, scheduler: str, learner: str) -> dict[str, Any]:
    """The web page's configuration."""
    return {
        "scheduler": scheduler,
        "learner": learner,
        "host": HOST,
        "port": port,
        "logs": str(paths.root),
        "history": str(paths.root / "dashboard.sqlite"),
        "security": {key: value for key, value in effective(config)["security"].items() if value != MASK},
    }


def fixed_ports(config: UpConfig) -> dict[str, int]:
    """The ports that must be free, by owner."""
    ports = {"learner": config.ports.learner, "learner metrics": _metrics_port(config, 1)}
    if not config.serial:
        ports |= {"scheduler": config.ports.scheduler, "scheduler metrics": _metrics_port(config, 0)}
        ports |= {f"{actor_name(index)} metrics": _metrics_port(config, 2 + index) for index in range(config.actors)}
    return {name: port for name, port in ports.items() if port}


def up_settings(config: UpConfig, run_id: str) -> dict[str, Any]:
    """The settings that `--resume` needs, without secrets, which come from the environment again."""
    settings = effective(config) | {"run_id": run_id}
    settings["security"] = {key: value for key, value in settings["security"].items() if value != MASK}
    return settings


def read_incarnations(paths: RunPaths) -> dict[str, int]:
    """The newest incarnation of every actor of this run; none for a new run."""
    if not paths.incarnations.exists():
        return {}
    try:
        content = yaml.safe_load(paths.incarnations.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, yaml.YAMLError):
        content = None
    if not isinstance(content, dict) or not all(isinstance(value, int) for value in content.values()):
        raise ConfigError(f"{paths.incarnations} must map actor ids to whole numbers", file=paths.incarnations)
    return {str(name): value for name, value in content.items()}


def _metrics_port(config: UpConfig, offset: int) -> int:
    return config.ports.metrics + offset if config.ports.metrics else 0
