"""FedAvg that writes down how long each round took."""

# mypy: ignore-errors

import json
import os
import time

import numpy as np
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg


class Timed(FedAvg):
    def configure_fit(self, *arguments, **options):
        self.began = time.perf_counter()
        return super().configure_fit(*arguments, **options)

    def aggregate_fit(self, number, results, failures):
        answer = super().aggregate_fit(number, results, failures)
        row = {"seconds": time.perf_counter() - self.began, "updates": len(results), "failures": len(failures)}
        with open(os.environ["FLOWER_ROUNDS"], "a") as file:
            file.write(json.dumps(row) + "\n")
        return answer


def make(context):
    nodes, size = int(context.run_config["nodes"]), int(context.run_config["parameters"])
    strategy = Timed(
        min_fit_clients=nodes,
        min_available_clients=nodes,
        fraction_evaluate=0.0,
        initial_parameters=ndarrays_to_parameters([np.zeros(size, np.float32)]),
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=int(context.run_config["rounds"])))


app = ServerApp(server_fn=make)
