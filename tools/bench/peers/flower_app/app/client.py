"""A node that adds a little to every number."""

# mypy: ignore-errors

import numpy as np
from flwr.client import ClientApp, NumPyClient


class Node(NumPyClient):
    def fit(self, parameters, config):
        return [parameters[0] + np.float32(1e-3)], 100, {}

    def evaluate(self, parameters, config):
        return 0.0, 1, {}


def make(context):
    return Node().to_client()


app = ClientApp(client_fn=make)
