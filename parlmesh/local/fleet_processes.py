"""Starts a whole fleet as child processes, in order and with their files. Watches nothing over gRPC."""

import asyncio
import contextlib
import importlib.util
import socket
from collections.abc import Mapping
from typing import Any

from parlmesh.errors import FailedPrecondition
from parlmesh.local.process_configs import (
    HOST,
    RunPaths,
    UpConfig,
    actor_name,
    actor_settings,
    dashboard_settings,
    fixed_ports,
    learner_settings,
    read_incarnations,
    scheduler_settings,
)
from parlmesh.processes import Child, ChildSpec, Supervisor, service_command, write_settings
from parlmesh.rpc.task_group import first_of

DASHBOARD = "dashboard"
DASHBOARD_NEEDS = ("jinja2", "starlette", "uvicorn")
START_SECONDS = 60.0
"""Longest wait for a service to report its port; torch alone may take ten seconds on a cold disk."""


HEAD_START_SECONDS = 3.0
"""At the end, the learner is asked to stop this long before the others."""
LEARNER_GRACE_SECONDS = 9.0
"""Time for the learner to write a checkpoint and a curve before it is killed; keeps a stop below ten seconds."""


class UpFleet:
    """Starts scheduler, learner and actors under a supervisor. A port of 0 is kept once it is known."""

    def __init__(self, config: UpConfig, paths: RunPaths, supervisor: Supervisor) -> None:
        self._config = config
        self._paths = paths
        self._supervisor = supervisor
        self._incarnations = read_incarnations(paths)
        self.scheduler = ""
        self.learner = ""

    @property
    def addresses(self) -> str:
        """The fleet's addresses, to be shown."""
        return f"learner {self.learner}" + (f", scheduler {self.scheduler}" if self.scheduler else "")

    async def start(self) -> None:
        """Starts every process; returns when the addresses are known."""
        if self._config.serial:
            await self.start_serial()
            return
        self.scheduler = await self._serve("scheduler", self._config.ports.scheduler)
        self.learner = await self._serve("learner", self._config.ports.learner)
        for index in range(self._config.actors):
            self._start_actor(index)

    def start_dashboard(self) -> None:
        """Starts the web page; nothing waits for it, and the fleet works without it."""
        file = self._paths.service(DASHBOARD)
        port = self._config.ports.dashboard
        settings = dashboard_settings(
            self._config, self._paths, port if _is_free(port) else 0, self.scheduler, self.learner
        )
        write_settings(file, settings)
        self._supervisor.start(
            ChildSpec(DASHBOARD, lambda _: service_command(DASHBOARD, file), self._paths.log(DASHBOARD))
        )

    async def dashboard_link(self) -> str:
        """Waits until the web page serves and returns its address."""
        port = await self._supervisor.serving(DASHBOARD, deadline_seconds=START_SECONDS)
        return f"http://{HOST}:{port}/"

    async def start_serial(self) -> None:
        """Starts a learner that does everything itself."""
        self.scheduler = ""
        self.learner = await self._serve("learner", self._config.ports.learner)

    async def lost(self) -> str:
        """Waits until a service that the run needs is no longer restarted; returns the reason."""
        names = ("scheduler", "learner") if self.scheduler else ("learner",)
        services = [self._supervisor.children[name] for name in names]
        await first_of(*(child.settled.wait() for child in services))
        return next(child.reason or f"{child.spec.name} was stopped" for child in services if child.settled.is_set())

    async def without_actors(self) -> str:
        """Waits until the last actor is no longer restarted and returns the reason; never returns if there are no
        actors."""
        actors = self._actors()
        if not actors:
            await asyncio.Event().wait()
        for child in actors:
            await child.settled.wait()
        return next((child.reason for child in actors if child.reason), "all were stopped")

    async def stop(self) -> None:
        """Ends everything: the learner first, while the other processes can still finish its tasks."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEAD_START_SECONDS):
                await self._supervisor.stop({"learner"} & self._supervisor.children.keys())
        await self._supervisor.stop()

    def _actors(self) -> list[Child]:
        names = [actor_name(index) for index in range(self._config.actors)]
        return [self._supervisor.children[name] for name in names if name in self._supervisor.children]

    async def _serve(self, service: str, port: int) -> str:
        """Starts a service and returns its address; waits only if the port is 0."""
        file = self._paths.service(service)
        write_settings(file, self._settings(service, port))
        grace_seconds = LEARNER_GRACE_SECONDS if service == "learner" else 0.0
        self._supervisor.start(
            ChildSpec(
                service,
                lambda _: service_command(service, file),
                self._paths.log(service),
                grace_seconds=grace_seconds,
            )
        )
        if not port:
            port = await self._supervisor.serving(service, deadline_seconds=START_SECONDS)
            # A restart must use the port that the others know.
            write_settings(file, self._settings(service, port))
        return f"{HOST}:{port}"

    def _settings(self, service: str, port: int) -> Mapping[str, Any]:
        if service == "scheduler":
            return scheduler_settings(self._config, self._paths, port)
        return learner_settings(self._config, self._paths, port, self.scheduler)

    def _start_actor(self, index: int) -> None:
        name = actor_name(index)
        file = self._paths.service(name)
        write_settings(file, actor_settings(self._config, index, self.scheduler, self.learner))

        def command(incarnation: int) -> list[str]:
            # Written before the start, so that a later process does not repeat the seeds after a crash of this one.
            self._incarnations[name] = incarnation
            write_settings(self._paths.incarnations, self._incarnations)
            return service_command("actor", file, f"incarnation={incarnation}")

        first = self._incarnations.get(name, 0) + 1
        self._supervisor.start(ChildSpec(name, command, self._paths.log(name), first_incarnation=first))


def has_dashboard() -> bool:
    """Whether the `dashboard` extra is installed."""
    return all(importlib.util.find_spec(module) is not None for module in DASHBOARD_NEEDS)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def refuse_busy_ports(config: UpConfig) -> None:
    """Fails before anything is started if a port is taken; otherwise processes would talk to the wrong fleet."""
    for owner, port in fixed_ports(config).items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                raise FailedPrecondition(
                    f"port {port} ({owner}) cannot be used: {error.strerror}; stop what uses it or add --free-ports",
                    reason="CANNOT_LISTEN",
                    port=port,
                ) from None
