"""One session of `parlmesh up`: starts the fleet, shows it until the run ends, stops it and prints the summary."""

import asyncio
import signal
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from parlmesh.cli.screen.fleet_feed import follow_training, poll_scheduler
from parlmesh.cli.screen.fleet_view import FleetView
from parlmesh.cli.screen.live_display import shown
from parlmesh.cli.screen.live_table import console as new_console
from parlmesh.cli.screen.next_commands import print_next
from parlmesh.cli.screen.run_summary import print_ending, print_summary
from parlmesh.cli.up_ending import Ending
from parlmesh.errors import FleetError
from parlmesh.local.fleet_processes import UpFleet, has_dashboard
from parlmesh.local.process_configs import RunPaths, Session, UpConfig
from parlmesh.processes import Supervisor
from parlmesh.rpc.task_group import first_of

GRACE_SECONDS = 5.0
"""Time for actors and the scheduler to end on their own; then they are killed."""


async def train(config: UpConfig, paths: RunPaths, session: Session) -> int:
    """Runs the fleet to its end; returns the exit code."""
    console = new_console(stderr=session.as_json)
    started = time.monotonic()
    view = FleetView(paths.root.name, serial=config.serial, expected_actors=config.actors, supervised=True)

    def note(text: str) -> None:
        view.note(f"{time.strftime('%H:%M:%S')}  {text}")

    async with Supervisor(note=note, grace_seconds=GRACE_SECONDS) as supervisor:
        view.restarts = lambda: supervisor.restarts
        fleet = UpFleet(config, paths, supervisor)
        with Interrupts(supervisor.kill) as interrupts:
            async with shown(view, console, plain=session.plain):
                ending = await first_of(_until_the_end(fleet, view, config), _interrupted(interrupts, view))
                stays = session.keep and ending.reached
                if not stays:
                    view.phase = "stopping"
                    await fleet.stop()
            seconds = time.monotonic() - started
            print_summary(console, ending, paths, restarts=supervisor.restarts, seconds=seconds)
            if stays:
                page = f", page {view.page}" if view.page else ""
                console.print(f"\nthe fleet stays up at {fleet.addresses}{page}; Ctrl-C ends it")
                await interrupts.first.wait()
                await fleet.stop()
            else:
                print_next(console, ending, paths, session.again)
    if session.as_json:
        print_ending(ending, paths)
    # A process that refused its settings refused those given to this command.
    refusals = [child.refusal for child in supervisor.children.values() if child.refusal]
    return refusals[0] if refusals and not ending.reached else ending.exit_code


async def _until_the_end(fleet: UpFleet, view: FleetView, config: UpConfig) -> Ending:
    """Starts and follows a fleet; when no actor can be kept alive, continues in one process."""
    try:
        await fleet.start()
        end = await first_of(
            _followed(fleet, view, config), _lost(fleet, view), _without_actors(fleet), _with_page(fleet, view, config)
        )
        if end is not None:
            return end
        view.note("no actor can be kept alive; training continues in one process")
        view.phase = "falling back"
        await fleet.stop()
        view.serial, view.actors, view.statistics = True, (), None
        await fleet.start_serial()
        return await first_of(_followed(fleet, view, config), _lost(fleet, view))
    except FleetError as error:
        return Ending(view.training, error.message)


async def _followed(fleet: UpFleet, view: FleetView, config: UpConfig) -> Ending:
    following = follow_training(view, fleet.learner, config.security, view.run_id)
    if not fleet.scheduler:
        return Ending(await following)
    return Ending(await first_of(following, poll_scheduler(view, fleet.scheduler, config.security)))


async def _lost(fleet: UpFleet, view: FleetView) -> Ending:
    return Ending(view.training, await fleet.lost())


async def _with_page(fleet: UpFleet, view: FleetView, config: UpConfig) -> None:
    """Starts the web page and says where it is; never returns."""
    if not config.dashboard:
        pass
    elif not has_dashboard():
        view.note("to see this in the browser: pip install 'parlmesh[dashboard]'")
    else:
        fleet.start_dashboard()
        try:
            view.page = await fleet.dashboard_link()
            view.note(f"open {view.page} to see it in the browser")
        except FleetError as error:
            view.note(f"there is no web page: {error.message}")
    await asyncio.Event().wait()


async def _without_actors(fleet: UpFleet) -> None:
    await fleet.without_actors()


async def _interrupted(interrupts: "Interrupts", view: FleetView) -> Ending:
    await interrupts.first.wait()
    return Ending(view.training, f"interrupted by {interrupts.name}")


class Interrupts:
    """Ctrl-C, SIGTERM and a closed terminal: the first one asks for a graceful end, the second ends immediately."""

    def __init__(self, at_once: Callable[[], None]) -> None:
        self.first = asyncio.Event()
        self.name = ""
        self._at_once = at_once

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._take, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)

    def _take(self, number: signal.Signals) -> None:
        if self.first.is_set():
            self._at_once()
        self.name = self.name or ("Ctrl-C" if number == signal.SIGINT else number.name)
        self.first.set()
