"""hypothesis looks for an order of events that breaks an invariant, and shrinks it."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from scheduler.core.actors.placement import ActorCommand
from scheduler.core.task import Failure, LeaseName, Task
from scheduler.simulation.invariants import check_whole
from tests.scheduler.conftest import Harness


class SchedulerMachine(RuleBasedStateMachine):
    """Events in any order, with separate records beside the core."""

    tasks: Bundle[str] = Bundle("tasks")
    actors: Bundle[str] = Bundle("actors")
    leases: Bundle[tuple[str, LeaseName]] = Bundle("leases")

    @initialize()
    def start(self) -> None:
        self.harness = Harness(retention={"max_tasks": 10_000}, queue={"refuse_unknown_kinds": False})
        self.sessions: dict[str, int] = {}
        self.incarnations: dict[str, int] = {}
        self.accepted: set[str] = set()
        self.ended: dict[str, Any] = {}
        self.seen = 0

    @rule(
        target=tasks,
        priority=st.integers(1, 5),
        kind=st.sampled_from(["noop", "echo"]),
        submitter=st.sampled_from(["me", "you"]),
        timeout=st.sampled_from([None, None, 3.0]),
        attempts=st.integers(0, 2),
    )
    def submit(self, priority: int, kind: str, submitter: str, timeout: float | None, attempts: int) -> str:
        task = Task("", kind, priority=priority, submitter=submitter, queue_timeout=timeout, max_attempts=attempts)
        (task_id,) = self.harness.submit(task)
        self.accepted.add(task_id)
        return task_id

    @rule(target=tasks, parent=tasks)
    def submit_child(self, parent: str) -> str:
        (task_id,) = self.harness.submit(Task("", "noop", dependencies=(parent,)))
        self.accepted.add(task_id)
        return task_id

    @rule(target=actors, name=st.sampled_from("abc"), slots=st.integers(1, 3), restarted=st.booleans())
    def connect(self, name: str, slots: int, restarted: bool) -> str:
        incarnation = self.incarnations.get(name, 1) + restarted
        self.incarnations[name] = incarnation
        self.sessions[name] = self.harness.connect(
            name, slots=slots, incarnation=incarnation, kinds=("noop", "echo") if name != "c" else ("noop",)
        )
        return name

    @rule(target=leases, name=actors)
    def receive(self, name: str) -> Any:
        """The actor reads its assignments."""
        return multiple(*[(name, task.lease) for task in self.harness.take(self.sessions[name])])

    @rule(held=consumes(leases), ok=st.booleans(), retryable=st.booleans())
    def answer(self, held: tuple[str, LeaseName], ok: bool, retryable: bool) -> None:
        """Perhaps long after the lease was lost, perhaps on a stream that was replaced."""
        name, lease = held
        failure = None if ok else Failure("HANDLER_ERROR", "it broke", retryable)
        result = f"{lease.lease_id}".encode() if ok else b""
        self.harness.report(
            self.sessions[name], results=[(lease.task_id, lease.lease_id, result, failure, 0.1)], credits=1
        )

    @rule(name=actors)
    def disconnect(self, name: str) -> None:
        self.harness.disconnect(self.sessions[name])

    @rule(task_id=tasks)
    def cancel(self, task_id: str) -> None:
        self.harness.cancel(task_id)

    @rule(name=actors, command=st.sampled_from(list(ActorCommand)))
    def command(self, name: str, command: ActorCommand) -> None:
        if name in self.harness.core.life.fleet.actors:
            self.harness.command(command, name)

    @rule(seconds=st.sampled_from([0.2, 2.0, 12.0]))
    def wait(self, seconds: float) -> None:
        self.harness.pass_time(seconds)

    @rule()
    def rebalance(self) -> None:
        self.harness.rebalance()

    @invariant()
    def tables_agree(self) -> None:
        if hasattr(self, "harness"):
            check_whole(self.harness.core)

    @invariant()
    def every_accepted_task_is_known_and_ends_once(self) -> None:
        if not hasattr(self, "harness"):
            return
        for task in self.harness.outcomes[self.seen :]:
            assert task.task_id not in self.ended
            self.ended[task.task_id] = (task.state, task.result)
            if task.result:
                assert task.result == f"{task.lease_id}".encode()
        self.seen = len(self.harness.outcomes)
        known = self.harness.core.life.tasks
        assert self.accepted <= known.keys()
        for task_id, end in self.ended.items():
            assert (known[task_id].state, known[task_id].result) == end


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
