"""Seconds of a steady round of Flower's own workflows, plain or with SecAgg+, each node in its own process.

Messages are Flower's, packed as it packs them, but go over pipes instead of its SuperLink and SuperNodes, whose
deployment starts a process for each message of a node. So its protocol and its arithmetic are measured, without the
seconds that its deployment adds.
"""

# mypy: ignore-errors
# Runs in the peer's venv, whose packages are unknown to ours.

import argparse
import json
import logging
import multiprocessing
import os
import statistics
import time
import uuid
import warnings
from concurrent.futures import ThreadPoolExecutor

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
warnings.filterwarnings("ignore")

import flwr  # noqa: E402
import numpy as np  # noqa: E402
from flwr.app import Context, RecordDict  # noqa: E402
from flwr.client import ClientApp, NumPyClient  # noqa: E402
from flwr.client.mod import secaggplus_mod  # noqa: E402
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays  # noqa: E402
from flwr.common.serde import message_from_proto, message_to_proto  # noqa: E402
from flwr.proto.message_pb2 import Message as ProtoMessage  # noqa: E402
from flwr.server import LegacyContext, ServerConfig  # noqa: E402
from flwr.server.strategy import FedAvg  # noqa: E402
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.supercore.run import Run  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

RUN = 1
STEP = 1e-3


class Node(NumPyClient):
    def fit(self, parameters, config):
        return [parameters[0] + np.float32(STEP)], 100, {}


def be_node(number, secure, pipe):
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, number
    app = ClientApp(client_fn=lambda context: Node().to_client(), mods=[secaggplus_mod] if secure else [])
    context = Context(RUN, number, {}, RecordDict(), {})
    while data := pipe.recv_bytes():
        message = message_from_proto(ProtoMessage.FromString(data))
        pipe.send_bytes(message_to_proto(app(message, context)).SerializeToString())


class Pipes(Grid):
    """One pipe to each node, all written to and read from at once."""

    def __init__(self, nodes, secure):
        self.threads = ThreadPoolExecutor(nodes)
        self.pipes, self.processes = {}, []
        for number in range(1, nodes + 1):
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.Process(target=be_node, args=(number, secure, theirs), daemon=True)
            process.start()
            self.pipes[number] = ours
            self.processes.append(process)

    def set_run(self, run):
        pass

    @property
    def run(self):
        return Run.create_empty(RUN)

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.pipes)

    def get_nodes(self):
        raise NotImplementedError

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        return list(self.threads.map(self.ask, messages))

    def ask(self, message):
        message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
        pipe = self.pipes[message.metadata.dst_node_id]
        pipe.send_bytes(message_to_proto(message).SerializeToString())
        return message_from_proto(ProtoMessage.FromString(pipe.recv_bytes()))

    def close(self):
        for pipe in self.pipes.values():
            pipe.send_bytes(b"")
        for process in self.processes:
            process.join(10)


def cpu_seconds():
    """Processor seconds of this process and its nodes so far."""
    total = time.process_time()
    for process in multiprocessing.active_children():
        with open(f"/proc/{process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


class Timed(FedAvg):
    def __init__(self, nodes, **options):
        super().__init__(**options)
        self.nodes, self.began, self.ended, self.used = nodes, [], 0.0, []

    def configure_fit(self, *arguments, **options):
        self.began.append(time.perf_counter())
        self.used.append(cpu_seconds())
        return super().configure_fit(*arguments, **options)

    def aggregate_fit(self, number, results, failures):
        answer = super().aggregate_fit(number, results, failures)
        assert len(results) == self.nodes, failures
        self.ended = time.perf_counter()
        self.used.append(cpu_seconds())
        found = parameters_to_ndarrays(answer[0])[0]
        # SecAgg+ rounds randomly to steps of 16 / 2^22, and clips to 8.
        assert np.abs(found - number * STEP).max() < 1e-4 * number, (number, found[:4])
        return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--secure", action="store_true", help="with SecAgg+")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1
    strategy = Timed(
        arguments.nodes,
        min_fit_clients=arguments.nodes,
        min_available_clients=arguments.nodes,
        fraction_evaluate=0.0,
        initial_parameters=ndarrays_to_parameters([np.zeros(arguments.parameters, np.float32)]),
    )
    context = LegacyContext(Context(RUN, 1, {}, RecordDict(), {}), ServerConfig(num_rounds=arguments.rounds), strategy)
    # All nodes are neighbours, and four of ten may leave, as with ours.
    fit = SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=0.6) if arguments.secure else None
    grid = Pipes(arguments.nodes, arguments.secure)
    DefaultWorkflow(fit_workflow=fit)(grid, context)
    grid.close()
    began = strategy.began
    assert len(began) == arguments.rounds, began
    seconds = [after - before for before, after in zip(began, [*began[1:], strategy.ended], strict=True)][1:]
    # Without the first round, in which nodes import their modules.
    used = 1e3 * (strategy.used[-1] - strategy.used[2]) / len(seconds)
    found = {"round_seconds": statistics.median(seconds), "rounds": seconds, "cpu_milliseconds_per_round": used}
    print(json.dumps({**found, "version": flwr.__version__}))


if __name__ == "__main__":
    main()
