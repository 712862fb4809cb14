"""What becomes of the results that an actor reports. Part of the core: no I/O."""

from collections.abc import Sequence

from .lifecycle import Lifecycle
from .placement import Actor
from .quarantine import NodeQuarantine
from .task import NO_LEASE, NO_RESULT, SUCCEEDED, Failure, Task

# (task id, lease id, encoded result, failure or None, seconds in the handler); a tuple for speed.
AttemptEnd = tuple[str, int, bytes, Failure | None, float]


def take_results(
    life: Lifecycle, quarantine: NodeQuarantine, sender: Actor, results: Sequence[AttemptEnd], now: float
) -> None:
    """Ends the attempts that an actor reports; what is stale or false is counted, and nothing else."""
    tasks = life.tasks
    plain: list[Task] = []
    succeed_alone = life.succeed_alone
    runs: dict[str, list[float]] = {}
    max_bytes = life.config.queue.max_payload_bytes
    bad: list[str] = []
    if sender.quarantined:
        life.statistics.stale_results += len(results)
        return
    for task_id, lease_id, result, failure, ran in results:
        task = tasks.get(task_id)
        if (
            task is None
            or task.state >= SUCCEEDED
            or task.lease_id != lease_id
            or lease_id == NO_LEASE
            or (task.actor is not sender and not (task.actor is None and sender.had(task)))
        ):
            life.statistics.stale_results += 1
            if task is not None and task.lease_id == lease_id != NO_LEASE and task.actor_id != sender.actor_id:
                bad.append(f'actor "{sender.actor_id}" answered for a lease of "{task.actor_id}"')
            continue
        task.ran = ran
        if len(result) > max_bytes:
            failure, result = _too_large(len(result), max_bytes), b""
        if failure is NO_RESULT:
            bad.append(f'actor "{sender.actor_id}" sent neither a result nor a failure of task "{task_id}"')
        if failure is None and task.actor is not None and task.children is None:
            # By far the most frequent end: counted for all of them at once.
            succeed_alone(task, result, now)
            plain.append(task)
        elif failure is None:
            life.succeed(task, result, now)
            sender.completed += 1
        else:
            life.fail_attempt(task, failure, now)
            sender.failed += 1
        if task.kind in runs:
            runs[task.kind].append(ran)
        else:
            runs[task.kind] = [ran]
    if plain:
        life.count_alone(plain, now)
        sender.completed += len(plain)
    _measure(life, sender, runs)
    for reason in bad:
        quarantine.strike(sender.node_id, reason, now)


def _measure(life: Lifecycle, actor: Actor, runs: dict[str, list[float]]) -> None:
    for kind, seconds in runs.items():
        count, mean = len(seconds), sum(seconds) / len(seconds)
        fleet_mean = life.statistics.count_runs(kind, count, mean)
        actor.measure(count, mean, fleet_mean, life.config.dispatch.prefetch_seconds)


def _too_large(size: int, limit: int) -> Failure:
    return Failure("INVALID_RESULT", f"the result has {size} bytes; the limit is {limit} (queue.max_payload_bytes)")
