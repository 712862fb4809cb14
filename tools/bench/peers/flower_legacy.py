"""Seconds of a steady round of Flower's gRPC server and client, one process each, on the loopback."""

# mypy: ignore-errors
# Runs in the peer's venv, whose packages are unknown to ours.

import argparse
import json
import logging
import os
import socket
import statistics
import subprocess
import sys
import time
import warnings

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["GRPC_VERBOSITY"] = "NONE"
warnings.filterwarnings("ignore")

import flwr  # noqa: E402
import numpy as np  # noqa: E402

logging.getLogger("flwr").setLevel(logging.ERROR)


class Node(flwr.client.NumPyClient):
    def fit(self, parameters, config):
        return [parameters[0] + np.float32(1e-3)], 100, {}


class Timed(flwr.server.strategy.FedAvg):
    def __init__(self, nodes, **options):
        super().__init__(**options)
        self.nodes, self.began, self.ended = nodes, [], 0.0

    def configure_fit(self, *arguments, **options):
        self.began.append(time.perf_counter())
        return super().configure_fit(*arguments, **options)

    def aggregate_fit(self, number, results, failures):
        answer = super().aggregate_fit(number, results, failures)
        assert len(results) == self.nodes, failures
        self.ended = time.perf_counter()
        return answer


def be_node(address):
    for _ in range(50):
        try:
            flwr.client.start_client(server_address=address, client=Node().to_client(), insecure=True, max_wait_time=30)
            return
        except Exception:
            time.sleep(0.3)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--node-of", default="", help="be a node of the server at this address")
    arguments = parser.parse_args()
    if arguments.node_of:
        be_node(arguments.node_of)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [sys.executable, __file__, "--node-of", address]
    nodes = [subprocess.Popen(command, **quiet) for _ in range(arguments.nodes)]
    strategy = Timed(
        arguments.nodes,
        min_fit_clients=arguments.nodes,
        min_available_clients=arguments.nodes,
        fraction_evaluate=0.0,
        initial_parameters=flwr.common.ndarrays_to_parameters([np.zeros(arguments.parameters, np.float32)]),
    )
    config = flwr.server.ServerConfig(num_rounds=arguments.rounds)
    flwr.server.start_server(server_address=address, config=config, strategy=strategy)
    for node in nodes:
        try:
            node.wait(10)
        except subprocess.TimeoutExpired:
            node.kill()
    began = strategy.began
    # The first round waits for the nodes to connect.
    seconds = [after - before for before, after in zip(began, [*began[1:], strategy.ended], strict=True)][1:]
    print(json.dumps({"round_seconds": statistics.median(seconds), "rounds": seconds, "version": flwr.__version__}))


if __name__ == "__main__":
    main()
