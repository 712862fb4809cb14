"""A run that trains in this process, with its source of experience."""

import asyncio

import grpc.aio

from ..config import LearnerConfig
from ..files.checkpoint import Checkpoint
from ..files.recorder import Recorder
from ..ranks.rank_setup import Members
from ..sources.fleet_source import FleetSource, Listener
from ..sources.serial_source import SerialSource
from .training_loop import TrainingRun


class LiveRun:
    """A run from its first policy, or its newest checkpoint, to its end."""

    def __init__(
        self,
        config: LearnerConfig,
        run: TrainingRun,
        recorder: Recorder,
        found: Checkpoint | None,
        channel: grpc.aio.Channel,
        members: Members | None = None,
    ) -> None:
        self.run = run
        self._config = config
        self._recorder = recorder
        self._found = found
        self._members = members
        self._fleet: FleetSource | None = None
        if config.mode == "fleet":
            self._fleet = FleetSource(
                channel,
                config.run_id,
                run.registry.run_uid,
                config.training,
                config.experience,
                Listener(
                    changed=run.wake,
                    rollout_failed=run.note_failed_rollout,
                    hopeless=run.fail,
                    obstacle=run.obstacles.note_scheduler,
                    note=run.obstacles.note_advice,
                ),
                league=run.league,
            )
            run.queue.asked = self._fleet.asked

    async def drive(self, *, paused: bool) -> None:
        """Returns when the run has ended; a run that was paused waits to be resumed."""
        try:
            if self._fleet is None:
                await self._serially(paused=paused)
            else:
                await self._by(self._fleet, paused=paused)
        finally:
            # In a thread, because a tracker may take a while to send the rest.
            await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Closes the files of a run that is no longer driven."""
        self._recorder.close()
        if self._members is not None:
            self._members.close()

    async def _by(self, fleet: FleetSource, *, paused: bool) -> None:
        async with asyncio.TaskGroup() as group:
            dispatching = group.create_task(fleet.run())
            await self.run.train(fleet, paused=paused)
            await fleet.close()
            dispatching.cancel()

    async def _serially(self, *, paused: bool) -> None:
        run, found = self.run, self._found
        source = SerialSource(
            self._config.training,
            run.registry,
            run.receive,
            on_failure=run.fail,
            ending=lambda: run.ending,
            step_seconds=self._config.experience.rollout_timeout_seconds,
            league=run.league,
        )
        try:
            if found is not None:
                await source.go_on(found.of_source, run.policy_blob(), found.version)
            await run.train(source, paused=paused)
        finally:
            source.close()
