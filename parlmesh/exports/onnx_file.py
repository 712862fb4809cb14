"""A policy as an ONNX file, from the environment's raw observation to the greedy action.

Inputs: observation [batch, ...]; mask [batch, choices] of masked environments; state [batch, size] of recurrent
policies, zeros at the start of an episode. Outputs: action [batch, ...], within the environment's bounds if it is
continuous; outputs [batch, choices or dimensions], the numbers it was chosen by; next_state. One-hot rows, flattening,
normalisation, masks and bounds are part of the file.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from parlmesh.errors import FailedPrecondition
from parlmesh.policies import PolicySpec, unpack_policy
from parlmesh.policies.convolutions import CONVOLUTIONS
from parlmesh.policies.distributions import MASKED
from parlmesh.policies.normaliser import LARGEST_FEATURE
from parlmesh.types import Array

# Old enough for every runtime in use.
_OPSET, _IR_VERSION = 17, 8
_ACTIVATIONS = {"tanh": "Tanh", "relu": "Relu"}


def to_onnx(spec: PolicySpec, weights: Mapping[str, Array], observation_dtype: str) -> bytes:
    """The ONNX file of a policy; raises FailedPrecondition for networks that cannot be written as ONNX."""
    graph = _Graph(weights)
    features = _features(graph, spec, observation_dtype)
    outputs = _NETWORKS.get(spec.network, _unknown)(graph, spec, features)
    if spec.dueling:
        outputs = _dueling(graph, spec, outputs)
    if spec.choice == "squashed":
        # The greedy action is the mean of the distribution.
        outputs = graph.nodes("Split", outputs, outputs=2, axis=1)[0]
    if spec.masked:
        graph.input("mask", TensorProto.BOOL, [spec.action.outputs])
        outputs = graph.node("Where", "mask", outputs, graph.constant("masked", np.array(MASKED)))
    graph.output("outputs", outputs, TensorProto.FLOAT, [spec.action.outputs])
    _action(graph, spec, outputs)
    return graph.to_bytes()


def policy_to_onnx(blob: bytes, observation_dtype: str) -> bytes:
    """The ONNX file of a policy blob as a learner serves it."""
    return to_onnx(*unpack_policy(blob), observation_dtype)


class _Graph:
    """Collects nodes, constants, inputs and outputs; nodes are named by number."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self.weights = weights
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, kind: int, shape: Sequence[int]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, kind, ["batch", *shape]))
        return name

    def output(self, name: str, value: str, kind: int, shape: Sequence[int]) -> None:
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, kind, ["batch", *shape]))

    def node(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        return self.nodes(operator, *inputs, outputs=outputs, **attributes)[0]

    def nodes(self, operator: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        names = [f"{operator.lower()}_{len(self._nodes)}_{index}" for index in range(outputs)]
        self._nodes.append(helper.make_node(operator, inputs, names, **attributes))
        return names

    def constant(self, name: str, value: Array) -> str:
        self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def weight(self, name: str) -> str:
        return self.constant(name, self.weights[name])

    def dense(self, name: str, hidden: str) -> str:
        return self.node("Gemm", hidden, self.weight(f"{name}.weight"), self.weight(f"{name}.bias"), transB=1)

    def to_bytes(self) -> bytes:
        graph = helper.make_graph(
            self._nodes, "policy", self._inputs, self._outputs, initializer=list(self._constants.values())
        )
        model = helper.make_model(
            graph,
            producer_name="parlmesh",
            ir_version=_IR_VERSION,
            opset_imports=[helper.make_opsetid("", _OPSET)],
        )
        onnx.checker.check_model(model, full_check=True)
        return model.SerializeToString()


def _features(graph: _Graph, spec: PolicySpec, dtype: str) -> str:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    observation = graph.input("observation", kind, spec.observation_shape)
    if spec.network == "tabular":
        return observation
    if spec.observation_states:
        states = graph.constant("states", np.array([spec.observation_states], np.int64))
        return graph.node("OneHot", observation, states, graph.constant("one_hot", np.array([0, 1], np.float32)))
    features = observation if dtype == "float32" else graph.node("Cast", observation, to=TensorProto.FLOAT)
    if spec.network in CONVOLUTIONS:
        scale = graph.constant("largest_byte", np.array(255.0 if dtype == "uint8" else 1.0, np.float32))
        return graph.node("Div", features, scale)
    shape = graph.constant("flat", np.array([-1, spec.observation_size], np.int64))
    features = graph.node("Reshape", features, shape)
    if not spec.normalised:
        return features
    features = graph.node("Sub", features, graph.weight("normaliser.mean"))
    features = graph.node("Mul", features, graph.weight("normaliser.scale"))
    low, high = (
        graph.constant(f"{word}_feature", np.array(sign * LARGEST_FEATURE, np.float32))
        for word, sign in (("smallest", -1), ("largest", 1))
    )
    return graph.node("Clip", features, low, high)


def _perceptron(graph: _Graph, spec: PolicySpec, hidden: str) -> str:
    hidden = _layers(graph, spec, "policy", len(spec.hidden), hidden)
    return graph.dense(f"policy.{len(spec.hidden)}", hidden)


def _recurrent(graph: _Graph, spec: PolicySpec, hidden: str) -> str:
    """A GRU cell in torch's layout: reset, update, new."""
    state = graph.input("state", TensorProto.FLOAT, [spec.state_size])
    hidden = _layers(graph, spec, "body", len(spec.hidden) - 1, hidden)
    parts = [
        graph.nodes("Split", graph.node("Gemm", value, weight, bias, transB=1), outputs=3, axis=1)
        for value, weight, bias in (
            (hidden, graph.weight("memory.weight_ih"), graph.weight("memory.bias_ih")),
            (state, graph.weight("memory.weight_hh"), graph.weight("memory.bias_hh")),
        )
    ]
    (reset_input, update_input, new_input), (reset_state, update_state, new_state) = parts
    reset = graph.node("Sigmoid", graph.node("Add", reset_input, reset_state))
    update = graph.node("Sigmoid", graph.node("Add", update_input, update_state))
    new = graph.node("Tanh", graph.node("Add", new_input, graph.node("Mul", reset, new_state)))
    # (1 − update) · new + update · state
    following = graph.node("Add", new, graph.node("Mul", update, graph.node("Sub", state, new)))
    graph.output("next_state", following, TensorProto.FLOAT, [spec.state_size])
    return graph.dense("policy.0", following)


def _convolution(graph: _Graph, spec: PolicySpec, hidden: str) -> str:
    layers, numbers = CONVOLUTIONS[spec.network], itertools.count()

    def convolved(images: str, kernel: int, stride: int, padding: int) -> str:
        name = f"conv.{next(numbers)}"
        weight, bias = graph.weight(f"{name}.weight"), graph.weight(f"{name}.bias")
        return graph.node("Conv", images, weight, bias, **_sides(kernel, stride, padding))

    for place, layer in enumerate(layers, start=1):
        hidden = convolved(hidden, layer.kernel, layer.stride, layer.padding)
        if layer.pooled:
            hidden = graph.node("MaxPool", hidden, **_sides(3, 2, 1))
        for _ in range(layer.blocks):
            inner = convolved(graph.node("Relu", hidden), 3, 1, 1)
            hidden = graph.node("Add", hidden, convolved(graph.node("Relu", inner), 3, 1, 1))
        if not layer.blocks or place == len(layers):
            hidden = graph.node("Relu", hidden)
    hidden = _layers(graph, spec, "body", len(spec.hidden), graph.node("Flatten", hidden))
    return graph.dense("policy.0", hidden)


def _sides(kernel: int, stride: int, padding: int) -> dict[str, Any]:
    return {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [padding] * 4}


def _layers(graph: _Graph, spec: PolicySpec, part: str, count: int, hidden: str) -> str:
    for layer in range(count):
        hidden = graph.node(_ACTIVATIONS[spec.activation], graph.dense(f"{part}.{layer}", hidden))
    return hidden


def _unknown(graph: _Graph, spec: PolicySpec, hidden: str) -> str:
    message = f"a {spec.network} policy cannot be written as ONNX; export it as SAFETENSORS"
    raise FailedPrecondition(message, reason="FORMAT")


def _table(graph: _Graph, spec: PolicySpec, states: str) -> str:
    return graph.node("Gather", graph.weight("policy.table"), states)


_NETWORKS = {"mlp": _perceptron, "recurrent": _recurrent, "tabular": _table}
_NETWORKS |= dict.fromkeys(CONVOLUTIONS, _convolution)


def _dueling(graph: _Graph, spec: PolicySpec, outputs: str) -> str:
    """Advantage − mean advantage + the state's value, which is the last output."""
    sizes = graph.constant("advantages_and_value", np.array([spec.action.outputs, 1], np.int64))
    advantages, value = graph.nodes("Split", outputs, sizes, outputs=2, axis=1)
    mean = graph.node("ReduceMean", advantages, axes=[1], keepdims=1)
    return graph.node("Add", advantages, graph.node("Sub", value, mean))


def _action(graph: _Graph, spec: PolicySpec, outputs: str) -> None:
    action = spec.action
    if action.kind == "continuous":
        low, high = np.array(action.low, np.float32), np.array(action.high, np.float32)
        if spec.actions == "clipped":
            above = graph.node("Max", outputs, graph.constant("lowest_action", low))
            chosen = graph.node("Min", above, graph.constant("highest_action", high))
        else:
            squashed = graph.node("Mul", graph.node("Tanh", outputs), graph.constant("half_width", (high - low) / 2))
            chosen = graph.node("Add", squashed, graph.constant("middle", (high + low) / 2))
        graph.output("action", chosen, TensorProto.FLOAT, action.shape)
    elif action.kind == "discrete":
        chosen = graph.node("ArgMax", outputs, axis=1, keepdims=0)
        graph.output("action", chosen, TensorProto.INT64, action.shape)
    else:
        sizes = graph.constant("sizes", np.array(action.sizes, np.int64))
        logits = graph.nodes("Split", outputs, sizes, outputs=len(action.sizes), axis=1)
        chosen = graph.node("Concat", *(graph.node("ArgMax", part, axis=1, keepdims=1) for part in logits), axis=1)
        graph.output("action", chosen, TensorProto.INT64, action.shape)
