"""A hostile actor: it has its own credential, speaks raw gRPC, and never stops by itself."""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import grpc.aio
import numpy as np

from parlmesh.rpc import open_channel
from parlmesh.security import SecurityConfig
from parlmesh.v1 import experience_service_pb2 as experience_pb
from parlmesh.v1 import federation_service_pb2 as federation_pb
from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import policy_service_pb2 as policy_pb
from parlmesh.v1 import task_pb2, tensor_pb2
from parlmesh.wire import payload_to_proto

CONNECT = "/parlmesh.v1.FleetService/Connect"
UPLOAD = "/parlmesh.v1.ExperienceService/UploadTrajectories"
UPDATE = "/parlmesh.v1.FederationService/SubmitUpdate"
UPDATES = "/parlmesh.v1.FederationService/SubmitUpdates"
MODEL = "/parlmesh.v1.FederationService/GetFederatedModel"
POLICY = "/parlmesh.v1.PolicyService/GetPolicy"
TRAININGS = "/parlmesh.v1.TrainingService/ListTrainings"
STOP = "/parlmesh.v1.TrainingService/StopTraining"
CANCEL = "/parlmesh.v1.SchedulerService/CancelTasks"

KINDS = ("rollout", "evaluate", "federated_fit", "federated_evaluate", "noop")
MOST_SECONDS = 5.0
"""Longest single attempt."""


class Hostile:
    """Attacks until it is told to stop; `did` counts what it did by attack, `statuses` what it got."""

    def __init__(
        self, scheduler: str, learners: list[str], security: SecurityConfig, victims: list[str], seed: int = 0
    ) -> None:
        self._scheduler = scheduler
        self._learners = learners
        self._security = security
        self._victims = victims
        self._random = random.Random(seed)
        self.did: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self._stolen: list[fleet_pb.Lease] = []

    async def rage(self, seconds: float) -> None:
        """Runs all attacks at once, repeatedly."""
        attacks: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self.garbage,
            self.others_names,
            self.huge_names,
            self.heartbeats,
            self.guessed_leases,
            self.rubbish_results,
            self.many_actors,
            self.lying_experience,
            self.garbled_experience,
            self.lying_updates,
            self.slow_streams,
            self.huge_bodies,
            self.forbidden,
        ]
        tasks = [asyncio.create_task(self._again(attack)) for attack in attacks]
        await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()
        # Calls that hang in gRPC are left behind: the other attacks wait for the end of this turn.
        await asyncio.wait(tasks, timeout=3.0)

    async def _again(self, attack: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            name = attack.__name__
            self.did[name] += 1
            try:
                await asyncio.wait_for(attack(), MOST_SECONDS)
                self.statuses[f"{name} OK"] += 1
            except TimeoutError:
                self.statuses[f"{name} TIMEOUT"] += 1
            except grpc.aio.AioRpcError as error:
                lost = error.details() == "Internal error from Core"
                self.statuses[f"{name} {'ENDED' if lost else error.code().name}"] += 1
            except (asyncio.InvalidStateError, grpc.aio.InternalError, grpc.aio.UsageError):
                # The stream ended during a write.
                self.statuses[f"{name} ENDED"] += 1
            await asyncio.sleep(0.02)

    def _channel(self, address: str) -> Any:
        return open_channel(address, self._security)

    def _learner(self) -> str:
        return self._random.choice(self._learners)

    def _bytes(self, most: int = 200) -> bytes:
        return self._random.randbytes(self._random.randrange(most))

    def _hello(self, **fields: Any) -> bytes:
        usual: dict[str, Any] = {
            "node_id": "mallory",
            "actor_id": "mallory",
            "incarnation": self._random.randrange(1, 1 << 40),
            "slots": 4,
            "kinds": KINDS,
        }
        return fleet_pb.ConnectRequest(hello=fleet_pb.Hello(**{**usual, **fields}), credits=8).SerializeToString()

    async def _send(self, address: str, method: str, messages: list[bytes], *, read: bool = True) -> None:
        """Sends messages on a stream; its first answer."""
        async with self._channel(address) as channel:
            stream = channel.stream_stream(method)(timeout=MOST_SECONDS)
            for message in messages:
                await stream.write(message)
            if read:
                await stream.read()
            await stream.done_writing()
            await stream.read()

    async def garbage(self) -> None:
        method = self._random.choice([CONNECT, UPLOAD, UPDATE, UPDATES])
        address = self._scheduler if method == CONNECT else self._learner()
        first = [self._hello()] if method == CONNECT and self._random.random() < 0.5 else []
        await self._send(address, method, [*first, *(self._bytes() for _ in range(20))])

    async def others_names(self) -> None:
        """Connects in the victim's name or as its actor, both as if restarted later."""
        victim = self._random.choice(self._victims)
        lie = self._random.choice([{"node_id": victim, "actor_id": victim}, {"actor_id": victim}, {"node_id": victim}])
        await self._send(self._scheduler, CONNECT, [self._hello(**lie, incarnation=(1 << 63) - 1)])

    async def huge_names(self) -> None:
        lie: dict[str, Any] = self._random.choice(
            [
                {"actor_id": "x" * 20_000},
                {"actor_id": "\x1b[2J\u202e[red]"},
                {"kinds": [f"kind-{number}" for number in range(20_000)]},
                {"labels": {"virtual_nodes": "1000000000"}},
                {"labels": {"virtual_nodes": "9" * 5000}},
                {"labels": {str(number): "v" * 1000 for number in range(2000)}},
                {"slots": (1 << 32) - 1},
                {"incarnation": (1 << 64) - 1},
                {"kinds": []},
            ]
        )
        await self._send(self._scheduler, CONNECT, [self._hello(**lie)])

    async def heartbeats(self) -> None:
        """Sends many results for invented leases, and reads no answers."""
        leases = [fleet_pb.Lease(task_id=f"t{number}", lease_id=number) for number in range(2000)]
        beat = fleet_pb.ConnectRequest(heartbeat=fleet_pb.Heartbeat(leases=leases)).SerializeToString()
        await self._send(self._scheduler, CONNECT, [self._hello(), *[beat] * 100], read=False)

    async def guessed_leases(self) -> None:
        known = self._stolen or [fleet_pb.Lease(task_id="t", lease_id=1)]
        guesses = []
        for number in range(200):
            lease = fleet_pb.Lease()
            lease.CopyFrom(self._random.choice(known))
            lease.lease_id = max(0, lease.lease_id + number - 100)
            guesses.append(fleet_pb.TaskResult(lease=lease, result=self._lie()))
        message = fleet_pb.ConnectRequest(results=guesses).SerializeToString()
        await self._send(self._scheduler, CONNECT, [self._hello(), message])

    def _lie(self) -> task_pb2.Payload:
        numbers: dict[str, Any] = {
            "samples": self._random.choice(["x", -1, 0, 1e308, 10**15]),
            "metrics": self._random.choice([None, {"loss": "x"}, {"loss": -1e300}]),
            "episode_returns": [1e308],
            "reason": "\x1b[31m" * 10,
        }
        kept = {name: value for name, value in numbers.items() if self._random.random() < 0.6}
        return payload_to_proto(kept, {"tensor": np.full(3, np.nan, np.float32)} if self._random.random() < 0.3 else {})

    async def rubbish_results(self) -> None:
        """Takes work like an honest actor, and answers with lies or failures, twice, or not at all."""
        async with self._channel(self._scheduler) as channel:
            stream = channel.stream_stream(CONNECT, response_deserializer=fleet_pb.ConnectResponse.FromString)(
                timeout=MOST_SECONDS
            )
            await stream.write(self._hello())
            while (answer := await stream.read()) is not grpc.aio.EOF:
                results = []
                for assignment in answer.assignments:
                    self._stolen = [*self._stolen[-50:], assignment.lease]
                    result = fleet_pb.TaskResult(lease=assignment.lease)
                    if self._random.random() < 0.5:
                        result.result.CopyFrom(self._lie())
                    else:
                        failure = task_pb2.Failure(reason="X" * 1000, message="y" * 100_000, retryable=True)
                        result.failure.CopyFrom(failure)
                    if self._random.random() < 0.8:
                        results += [result] * self._random.randrange(1, 3)
                message = fleet_pb.ConnectRequest(results=results, credits=8)
                await stream.write(message.SerializeToString())

    async def many_actors(self) -> None:
        name = f"mallory-{self._random.randrange(10**9)}"
        await self._send(self._scheduler, CONNECT, [self._hello(actor_id=name)])

    async def lying_experience(self) -> None:
        """Sends trajectories of other actors and of leases it never had, with absurd rewards."""
        messages = []
        for number in range(20):
            trajectory = experience_pb.Trajectory(
                run_id=self._random.choice(["run", "", "../run", "r" * 5000]),
                actor_id=self._random.choice([*self._victims, "mallory", "a" * 20_000]),
                incarnation=self._random.choice([1, (1 << 63) - 1, (1 << 64) - 1]),
                sequence=self._random.choice([number, (1 << 64) - 1]),
                policy_version=self._random.choice([0, 1, (1 << 64) - 1]),
                task_id=self._random.choice(["", *(lease.task_id for lease in self._stolen[-3:])]),
                columns=self._columns(),
                episodes=[experience_pb.Episode(total_reward=3e38, steps=1)],
            )
            messages.append(experience_pb.UploadTrajectoriesRequest(trajectory=trajectory).SerializeToString())
        await self._send(self._learner(), UPLOAD, messages)

    def _columns(self) -> list[tensor_pb2.Tensor]:
        value = self._random.choice([np.nan, np.inf, 3e38, 1.0])
        steps, envs = 8, 4
        shapes = {
            "observations": (steps + 1, envs, 4),
            "rewards": (steps, envs),
            "actions": (steps, envs),
            "log_probabilities": (steps, envs),
        }
        return [
            tensor_pb2.Tensor(
                name=name,
                dtype=tensor_pb2.DATA_TYPE_FLOAT32,
                shape=shape,
                data=np.full(shape, value, "<f4").tobytes(),
            )
            for name, shape in shapes.items()
        ]

    async def garbled_experience(self) -> None:
        tensor = self._random.choice(
            [
                tensor_pb2.Tensor(name="rewards", dtype=_dtype(999), shape=[1], data=b"1234"),
                tensor_pb2.Tensor(name="rewards", dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[1 << 62, 0, 1 << 62]),
                tensor_pb2.Tensor(name="rewards", dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[1 << 40], data=b"1234"),
                tensor_pb2.Tensor(name="x" * 100_000, dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[1] * 1000),
            ]
        )
        trajectory = experience_pb.Trajectory(run_id="run", actor_id="mallory", sequence=1, columns=[tensor])
        message = experience_pb.UploadTrajectoriesRequest(trajectory=trajectory).SerializeToString()
        await self._send(self._learner(), UPLOAD, [message] * 5)

    async def lying_updates(self) -> None:
        header = federation_pb.UpdateHeader(
            federation_id=self._random.choice(["f", "", "../f", "f" * 10_000]),
            round=self._random.choice([0, 1, 2, (1 << 64) - 1]),
            node_id=self._random.choice([*self._victims, "mallory", "mallory#0", "m" * 20_000]),
            base_version=self._random.choice([0, 1, (1 << 64) - 1]),
            nonce=self._bytes(),
            samples=self._random.choice([0, 10**12, (1 << 64) - 1]),
            digest=self._bytes(),
            size_bytes=self._random.choice([0, 4000, 1 << 62]),
            tensors=[tensor_pb2.Tensor(name="weights", dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[1 << 40])],
        )
        parts = [federation_pb.SubmitUpdateRequest(header=header), federation_pb.SubmitUpdateRequest(data=b"x" * 4000)]
        if self._random.random() < 0.5:
            messages = [part.SerializeToString() for part in parts]
            await self._send(self._learners[-1], UPDATE, messages)
        else:
            request = federation_pb.SubmitUpdatesRequest(parts=parts * 20)
            await self._send(self._learners[-1], UPDATES, [request.SerializeToString()] * 3)

    async def slow_streams(self) -> None:
        """Opens streams, sends part of a message and waits."""
        async with self._channel(self._learner()) as channel:
            streams = [channel.stream_stream(UPLOAD)(timeout=MOST_SECONDS) for _ in range(20)]
            for stream in streams:
                await stream.write(b"")
            await asyncio.sleep(2.0)

    async def huge_bodies(self) -> None:
        body = bytes(8 * 1024 * 1024 - 1)
        async with self._channel(self._learner()) as channel:
            calls = [channel.unary_unary(TRAININGS)(body, timeout=MOST_SECONDS) for _ in range(10)]
            await asyncio.wait([asyncio.ensure_future(_ended(call)) for call in calls])

    async def forbidden(self) -> None:
        """Makes many calls that an actor may not make, and allowed ones with strange requests."""
        async with self._channel(self._scheduler) as scheduler, self._channel(self._learner()) as learner:
            wish = policy_pb.GetPolicyRequest(run_id="r" * 1000).SerializeToString()
            model = federation_pb.GetFederatedModelRequest(federation_id="f", version=(1 << 64) - 1)
            calls = [
                *(scheduler.unary_unary(CANCEL)(b"", timeout=MOST_SECONDS) for _ in range(50)),
                *(learner.unary_unary(STOP)(b"", timeout=MOST_SECONDS) for _ in range(50)),
                *(learner.unary_unary(POLICY)(wish, timeout=MOST_SECONDS) for _ in range(5)),
                *(learner.unary_unary(MODEL)(model.SerializeToString(), timeout=MOST_SECONDS) for _ in range(5)),
            ]
            await asyncio.wait([asyncio.ensure_future(_ended(call)) for call in calls])


def _dtype(number: int) -> Any:
    """An unlisted token."""
    return number


async def _ended(call: Any) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError):
        await call


async def main(arguments: dict[str, Any]) -> None:
    """Runs as a separate process, so that it takes no time from the observers: attacks and rests in turns."""
    # Really it would run elsewhere: it costs the fleet its messages, not the time of this machine's cores.
    os.nice(19)
    security = SecurityConfig(token_file=arguments["token_file"])
    hostile = Hostile(arguments["scheduler"], arguments["learners"], security, arguments["victims"])
    go_on = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, go_on.set)
    for turn in range(arguments["turns"]):
        say("rages", turn=turn)
        await hostile.rage(arguments["seconds"])
        say("rests", turn=turn)
        await asyncio.wait_for(go_on.wait(), 60.0)
        go_on.clear()
    say("raged", did=hostile.did, statuses=hostile.statuses)


def say(event: str, **fields: Any) -> None:
    sys.stderr.write(f"{json.dumps({'event': event, **fields})}\n")


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
