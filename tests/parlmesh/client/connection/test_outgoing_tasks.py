from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.client import Placement, Priority, TaskRequest
from parlmesh.client.connection.outgoing_tasks import Encoder
from parlmesh.errors import InvalidInput
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.wire import payload_from_proto

names = st.text(min_size=1, max_size=300)
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False, width=32)
values = st.none() | st.booleans() | st.text(max_size=5) | numbers
seconds = st.none() | st.floats(0.001, 1e6)
requests = st.builds(
    TaskRequest,
    names,
    st.dictionaries(st.text(max_size=5), values, max_size=4),
    st.just({}) | st.just({"x": np.arange(5000, dtype=np.float32)}),
    priority=st.sampled_from(Priority),
    dependencies=st.lists(names, max_size=3),
    placement=st.builds(Placement, st.text(max_size=5), st.dictionaries(names, names, max_size=2)),
    queue_timeout=seconds,
    run_timeout=seconds,
    max_attempts=st.integers(0, 2**32 - 1),
)


def decoded(*tasks: bytes) -> list[task_pb2.TaskSpec]:
    return list(pb.SubmitTasksRequest.FromString(b"".join(tasks)).tasks)


def duration(message: task_pb2.TaskSpec, name: str) -> float | None:
    return getattr(message, name).ToNanoseconds() / 1e9 if message.HasField(name) else None  # type: ignore[arg-type]


@given(st.lists(st.tuples(names, requests), max_size=5))
def test_what_is_written_by_hand_is_what_the_generated_classes_read(given: list[tuple[str, TaskRequest]]) -> None:
    encoder = Encoder("me")
    specs = decoded(*(encoder.task(request, task_id) for task_id, request in given))
    assert len(specs) == len(given)
    for spec, (task_id, request) in zip(specs, given, strict=True):
        parameters, tensors = payload_from_proto(spec.payload)
        assert (spec.task_id, spec.kind, spec.submitter) == (task_id, request.kind, "me")
        assert (int(spec.priority), spec.max_attempts) == (int(request.priority), request.max_attempts)
        assert parameters == request.parameters
        sent: dict[str, Any] = dict(request.tensors)
        assert {name: array.tolist() for name, array in tensors.items()} == {
            name: array.tolist() for name, array in sent.items()
        }
        assert list(spec.dependencies) == request.dependencies
        assert (spec.placement.node_id, dict(spec.placement.labels)) == (
            request.placement.node_id,
            request.placement.labels,
        )
        assert duration(spec, "queue_timeout") == pytest.approx(request.queue_timeout, abs=1e-9)
        assert duration(spec, "run_timeout") == pytest.approx(request.run_timeout, abs=1e-9)


def test_tasks_that_differ_in_one_option_only_do_not_share_a_head() -> None:
    encoder = Encoder("me")
    options: list[Mapping[str, Any]] = [
        {},
        {"priority": Priority.LOW},
        {"run_timeout": 1.0},
        {"queue_timeout": 1.0},
        {"max_attempts": 2},
        {"placement": Placement("a")},
        {"placement": Placement("a", {"b": "c"})},
        {"placement": Placement("", {"b": "c"})},
    ]
    tasks = {encoder.task(TaskRequest("noop", **option), "t") for option in options}
    assert len(tasks) == len(options)


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (TaskRequest(""), "kind is ''; it must be the name of a handler"),
        (TaskRequest(3), "kind is 3; it must be the name"),  # type: ignore[arg-type]
        (TaskRequest("a", priority=9), r"priority is 9; it goes from 1 \(BACKGROUND\) to 5"),  # type: ignore[arg-type]
        (TaskRequest("a", run_timeout=0), "run_timeout is 0 s; it must be 0.001 s to"),
        (TaskRequest("a", run_timeout=float("nan")), "run_timeout is nan s"),
        (TaskRequest("a", queue_timeout=-1), "queue_timeout is -1 s; it must be 0 s to"),
        (TaskRequest("a", queue_timeout=1e30), r"queue_timeout is 1e\+30 s"),
        (TaskRequest("a", max_attempts=-1), r"max_attempts is -1; it must be 0 .* to 4294967295"),
        (TaskRequest("a", dependencies="b"), "dependencies is the text 'b'; it must be a list"),
        (TaskRequest("a", dependencies=[3]), "dependencies has 3; every id must be text"),  # type: ignore[list-item]
        (TaskRequest("a", {"x": object()}), r"'x' is <object .*; a value must be text, a number"),
        (TaskRequest("a", {}, {"x": np.array(["text"])}), "tensor x has dtype"),
        (TaskRequest("a", placement=Placement("", {"a": 3})), "cannot be submitted"),  # type: ignore[dict-item]
        (TaskRequest("a", run_timeout="soon"), "cannot be submitted"),  # type: ignore[arg-type]
        (TaskRequest("a", placement=None), "cannot be submitted"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(request_: TaskRequest, sentence: str) -> None:
    encoder = Encoder("me")
    for _ in range(2):  # a refused head is not kept
        with pytest.raises(InvalidInput, match=sentence):
            encoder.task(request_, "t")
