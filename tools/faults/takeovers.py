"""Several schedulers on one PostgreSQL, under load; the leader is killed, stopped or cut off, turn by turn."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from parlmesh.rpc import open_channel
from parlmesh.testing import Process, free_port, wait_until_async
from parlmesh.testing.history import Delivered, Fault, History, Journal, Submitted, now
from parlmesh.testing.history_rules import Violation, check
from parlmesh.testing.postgres import Cluster, query
from parlmesh.testing.proxy import Proxy
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from parlmesh.wire import payload_from_proto, payload_to_proto

from .handlers import KINDS, VARIABLE

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0
FAULTS = ("kill", "stop", "cut")
_CALL_SECONDS = 5.0
_PAUSE_SECONDS = 0.01
_KIND = "mark_inline"


@dataclass(frozen=True, slots=True)
class Turn:
    """One fault and how long the takeover took."""

    fault: str
    leader: int
    follower: int
    led_seconds: float
    """Seconds from the fault until another scheduler led."""
    acknowledged_seconds: float
    """Seconds from the fault until a client that knows both had a task accepted."""


class Loader:
    """Submits task after task and records the answers."""

    def __init__(self, addresses: str, journal: Journal) -> None:
        self._addresses = addresses
        self._journal = journal
        self.acknowledged: list[str] = []
        # When each accepted request started and ended.
        self.answers: list[tuple[float, float]] = []
        self.stopping = False
        self.failed = 0

    async def run(self) -> None:
        async with open_channel(self._addresses) as channel:
            stub: Any = SchedulerServiceStub(channel)
            number = 0
            while not self.stopping:
                number += 1
                await self._submit(stub, f"task-{number}")
                await asyncio.sleep(_PAUSE_SECONDS)

    async def outcomes(self) -> None:
        """Asks for every acknowledged task until each has ended."""
        async with open_channel(self._addresses) as channel:
            stub: Any = SchedulerServiceStub(channel)
            for task_id in self.acknowledged:
                await wait_until_async(lambda name=task_id: self._has_ended(stub, name), SECONDS)  # type: ignore[misc]

    async def _submit(self, stub: Any, task_id: str) -> None:
        spec = task_pb2.TaskSpec(task_id=task_id, kind=_KIND, payload=payload_to_proto({}), max_attempts=10)
        first = now()
        while True:
            start = now()
            try:
                await stub.SubmitTasks(pb.SubmitTasksRequest(tasks=[spec]), timeout=_CALL_SECONDS)
            except grpc.aio.AioRpcError:
                self.failed += 1
                if self.stopping:
                    self._journal.add(Submitted((task_id,), first, now(), "unknown"))
                    return
                await asyncio.sleep(0.02)
                continue
            self.answers.append((start, now()))
            self._journal.add(Submitted((task_id,), first, now(), "accepted"))
            self.acknowledged.append(task_id)
            return

    async def _has_ended(self, stub: Any, task_id: str) -> bool:
        try:
            task = (await stub.GetTask(pb.GetTaskRequest(task_id=task_id), timeout=_CALL_SECONDS)).task
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                self._journal.add(Delivered(task_id, now(), "lost"))
                return True
            return False
        if not task.HasField("outcome"):
            return False
        state = task_pb2.TaskState.Name(task.outcome.state).removeprefix("TASK_STATE_").lower()
        token = payload_from_proto(task.outcome.result)[0].get("token", "") if state == "succeeded" else ""
        self._journal.add(Delivered(task_id, now(), state, str(token)))
        return True


class Schedulers:
    """The processes of one fleet, with a separate link from each scheduler to the database."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        *,
        count: int = 2,
        settings: Mapping[str, Any] | None = None,
        standby: Cluster | None = None,
    ):
        self._cluster = cluster
        # A database that may be promoted to the primary: every scheduler knows both.
        self._standby = standby
        self._settings = dict(settings or {})
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.url = cluster.database()
        self._name = self.url.rpartition("/")[2]
        self.ports = [free_port() for _ in range(count)]
        self.links: list[Proxy] = []
        self.processes: list[Process | None] = [None] * count
        self._stack = AsyncExitStack()

    @property
    def addresses(self) -> str:
        """All of them, as clients and actors take them."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    async def __aenter__(self) -> "Schedulers":
        for _ in self.ports:
            self.links.append(await self._stack.enter_async_context(Proxy(f"127.0.0.1:{self._cluster.port}")))
        for index in range(len(self.ports)):
            self.start(index)
        await wait_until_async(lambda: self.leader() is not None, SECONDS)
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.processes:
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    process.signal(signal.SIGCONT)
                with process:
                    pass
        await self._stack.aclose()

    def start(self, index: int) -> None:
        databases = [self.links[index].address, *([f"127.0.0.1:{self._standby.port}"] if self._standby else [])]
        settings = {
            "listen.port": self.ports[index],
            "listen.drain_seconds": 1,
            "metrics.port": "null",
            "store.url": self._cluster.url(self._name, address=",".join(databases)),
            "store.address": f"127.0.0.1:{self.ports[index]}",
            **self._settings,
        }
        arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        self.processes[index] = Process("scheduler", *arguments, cwd=ROOT)

    def start_actor(self) -> Process:
        settings = {
            "node_id": "actor",
            "actor_id": "actor",
            "slots": 2,
            "kinds": f"[noop, {_KIND}]",
            "metrics.port": "null",
            "scheduler": self.addresses,
            f"handlers.{_KIND}": KINDS[_KIND],
        }
        arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        environment = {VARIABLE: str(self.folder / "effects.jsonl")}
        process = Process("actor", *arguments, cwd=ROOT, environment=environment)
        self._stack.callback(process.__exit__, None, None, None)
        return process

    def process(self, index: int) -> Process:
        found = self.processes[index]
        assert found is not None
        return found

    def terms(self, index: int) -> int:
        """How often the scheduler has become the leader since its start."""
        return len(self.process(index).events("serving"))

    def lead_row(self) -> tuple[int, str, str]:
        """Epoch, holder and address, as the database has them."""
        (row,) = query(self.url, "SELECT epoch, holder, address FROM parlmesh.leader")
        return int(row["epoch"]), str(row["holder"]), str(row["address"])

    def leader(self) -> int | None:
        """According to the logs: a scheduler that serves and has not stepped down since."""
        for index, process in enumerate(self.processes):
            if process is None or not process.running:
                continue
            events = [event["event"] for event in process.events()]
            last = max((i for i, name in enumerate(events) if name == "serving"), default=-1)
            if last >= 0 and "stepping_down" not in events[last:]:
                return index
        return None


class Takeovers:
    """Turns of faults under load; `async with` owns the load too."""

    def __init__(self, schedulers: Schedulers) -> None:
        self.schedulers = schedulers
        self._journal = Journal(schedulers.folder / "client.jsonl")
        self.loader = Loader(schedulers.addresses, self._journal)
        self.turns: list[Turn] = []
        self.findings: list[str] = []

    async def turn(self, fault: str) -> Turn:
        """One fault of the leader, until another scheduler leads and the old one stands by again."""
        schedulers, loader = self.schedulers, self.loader
        leader = schedulers.leader()
        assert leader is not None
        before = await asyncio.to_thread(schedulers.lead_row)
        others = {index: schedulers.terms(index) for index in range(len(schedulers.ports)) if index != leader}
        start, began = now(), time.monotonic()
        await self._inject(fault, leader)

        def follower() -> int | None:
            return next((index for index, terms in others.items() if schedulers.terms(index) > terms), None)

        await wait_until_async(lambda: follower() is not None, SECONDS)
        led = time.monotonic() - began
        found = follower()
        assert found is not None
        # The new leader's answer to a request made after the fault.
        await wait_until_async(lambda: loader.answers and loader.answers[-1][0] > start, SECONDS)
        acknowledged = min(end for begin, end in loader.answers if begin > start) - start
        after = await asyncio.to_thread(schedulers.lead_row)
        if after[0] <= before[0]:
            self.findings.append(f"{fault}: the epoch was {before[0]} and is {after[0]}")
        await self._heal(fault, leader)
        again = await asyncio.to_thread(schedulers.lead_row)
        if again != after:
            self.findings.append(f"{fault}: the old leader came back and changed {after} to {again}")
        self.note_change(start)
        turn = Turn(fault, leader, found, round(led, 3), round(acknowledged, 3))
        self.turns.append(turn)
        return turn

    def note_change(self, start: float) -> None:
        """Records a possible change of leader: first attempts of the old one's last moment may run again."""
        self._journal.add(Fault("scheduler", "kill", start, now()))

    async def _inject(self, fault: str, leader: int) -> None:
        process = self.schedulers.process(leader)
        if fault == "kill":
            await asyncio.to_thread(process.kill)
        elif fault == "stop":
            process.signal(signal.SIGSTOP)
        elif fault == "cut":
            self.schedulers.links[leader].hold()
        else:
            raise ValueError(f"there is no fault {fault!r}; there are {', '.join(FAULTS)}")

    async def _heal(self, fault: str, leader: int) -> None:
        """Returns once the old leader stands by."""
        schedulers = self.schedulers
        if fault == "kill":
            with schedulers.process(leader):
                pass
            schedulers.start(leader)
        elif fault == "stop":
            schedulers.process(leader).signal(signal.SIGCONT)
        else:
            schedulers.links[leader].heal()

        def stands_by() -> bool:
            events = [event["event"] for event in schedulers.process(leader).events()]
            return bool(events) and "standing_by" in events and _last(events, "standing_by") > _last(events, "serving")

        await wait_until_async(stands_by, SECONDS)

    def violations(self) -> list[Violation]:
        return check(History.read(self.schedulers.folder.glob("*.jsonl")))


def _last(events: list[str], name: str) -> int:
    return max((index for index, event in enumerate(events) if event == name), default=-1)


@contextlib.asynccontextmanager
async def under_load(schedulers: Schedulers) -> AsyncIterator[Takeovers]:
    """Load until the end of the block; then every acknowledged task has ended, and the history can be checked."""
    takeovers = Takeovers(schedulers)
    actor = schedulers.start_actor()
    loading = asyncio.create_task(takeovers.loader.run())
    try:
        await asyncio.to_thread(actor.wait_for, "connected", SECONDS)
        await wait_until_async(lambda: len(takeovers.loader.acknowledged) > 0, SECONDS)
        yield takeovers
        takeovers.loader.stopping = True
        await loading
        await takeovers.loader.outcomes()
    finally:
        loading.cancel()
        await asyncio.wait({loading})
