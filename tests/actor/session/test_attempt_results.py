import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actor.session.attempt_results import (
    AttemptTimeout,
    call,
    call_async,
    call_in_thread,
    failed,
    failure_of,
    outcome_of,
    payload_of,
    success,
)
from parlmesh.blobs import BlobFolder, Blobs
from parlmesh.errors import InvalidInput, Unavailable
from parlmesh.handlers import EMPTY, Cancelled, Context, HandlerError, Result, RunsIn, Tail
from parlmesh.v1.fleet_service_pb2 import Assignment, Lease
from parlmesh.v1.task_pb2 import Failure, Payload
from parlmesh.wire import payload_from_proto, payload_to_proto
from parlmesh.wire.tensors import reference_from_proto

_CONTEXT = Context(task_id="t", attempt=1, actor_id="a", slot=0)
_LEASE = Lease(task_id="t", lease_id=7, attempt=1)


class Busy(Exception):
    """Imports nothing of parlmesh, and says itself what it is."""

    retryable = True
    reason = "BUSY"


class Answers:
    kind = "answers"
    runs_in = RunsIn.THREAD

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Context) -> Any:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


def test_a_handler_gets_its_parameters_and_tensors_and_its_answer_is_encoded() -> None:
    class Doubles(Answers):
        def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Context) -> Any:
            return Result({"n": parameters["n"] * 2}, {"x": tensors["x"] * 2})

    assignment = Assignment(payload=payload_to_proto({"n": 4}, {"x": np.arange(3)}))
    parameters, tensors = payload_from_proto(call(Doubles(None), assignment, _CONTEXT))
    assert parameters == {"n": 8}
    assert tensors["x"].tolist() == [0, 2, 4]


def test_an_answer_refers_to_arrays_that_its_own_task_was_given_alone(tmp_path: Path) -> None:
    blobs = Blobs.of((str(tmp_path), "a1", "100", "10000", "0"))
    kept: list[Any] = []

    class Keeps(Answers):
        def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Context) -> Any:
            kept.extend(tensors.values())
            return Result({}, {"x": kept[0]})

    array = np.arange(100.0)
    given = Blobs.of((str(tmp_path), "c", "100", "10000", "0")).keep(array, "1")
    first = Assignment(lease=_LEASE, payload=payload_to_proto({}, {"x": given}))
    assert call(Keeps(None), first, _CONTEXT, blobs).tensors[0].blob == given.name
    later = call(Keeps(None), Assignment(lease=_LEASE), _CONTEXT, blobs)
    assert later.tensors[0].blob.startswith("blob:a1.7.")
    assert blobs.load(reference_from_proto(later.tensors[0])).tolist() == array.tolist()


def test_an_answer_for_which_there_is_no_room_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = BlobFolder.write

    def full(folder: BlobFolder, name: str, data: memoryview) -> None:
        if any(tmp_path.iterdir()):
            raise OSError(28, "No space left on device")
        write(folder, name, data)

    monkeypatch.setattr(BlobFolder, "write", full)
    blobs = Blobs.of((str(tmp_path), "a1", "100", "10000", "0"))
    with pytest.raises(HandlerError, match=r"of 800 bytes cannot be kept in .* bytes are free there") as error:
        payload_of(Result({}, {"x": np.arange(99.0), "y": np.arange(100.0)}), "k", blobs)
    assert not any(tmp_path.iterdir())
    assert (error.value.reason, error.value.retryable) == ("BLOB_FOLDER_FULL", True)


def test_a_dict_is_an_answer() -> None:
    assert payload_from_proto(payload_of({"a": [1, "b", None]}, "k")) == ({"a": [1, "b", None]}, {})


def test_the_empty_answer_is_an_empty_payload() -> None:
    assert payload_of(EMPTY, "k") == Payload()


@pytest.mark.parametrize(
    "junk",
    [
        None,
        3,
        Tail(lambda: asyncio.sleep(0, EMPTY)),
        "text",
        [1],
        object(),
        {"f": object()},
        Result({}, {"o": np.array([object()])}),
    ],
)
def test_anything_else_is_an_invalid_result(junk: object) -> None:
    with pytest.raises(HandlerError) as caught:
        payload_of(junk, "k")
    assert caught.value.reason == "INVALID_RESULT"
    assert not caught.value.retryable
    assert "k" in caught.value.message


def test_a_plain_handler_that_answers_a_coroutine_has_an_invalid_result() -> None:
    with pytest.raises(HandlerError, match="coroutine"):
        call(Answers(asyncio.sleep(0)), Assignment(), _CONTEXT)


@pytest.mark.parametrize(
    ("error", "reason", "retryable", "text"),
    [
        (ValueError("two\nlines"), "HANDLER_ERROR", False, "ValueError: two lines"),
        (ZeroDivisionError(), "HANDLER_ERROR", False, "ZeroDivisionError"),
        (KeyError("cell"), "HANDLER_ERROR", False, "KeyError: 'cell'"),
        (ConnectionResetError("gone"), "HANDLER_ERROR", True, "ConnectionResetError: gone"),
        (TimeoutError(), "HANDLER_ERROR", True, "TimeoutError"),
        (MemoryError(), "HANDLER_ERROR", True, "MemoryError"),
        (Busy("later"), "BUSY", True, "Busy: later"),
        (InvalidInput("steps must be >= 1, got 0"), "INVALID_PARAMETERS", False, "steps must be >= 1, got 0"),
        (Unavailable("no learner"), "HANDLER_ERROR", True, "Unavailable: no learner"),
        (AttemptTimeout("ran too long"), "DEADLINE_EXCEEDED", True, "ran too long"),
        (HandlerError("no", retryable=False), "HANDLER_ERROR", False, "no"),
        (Cancelled("task t"), "HANDLER_ERROR", True, "Cancelled: task t"),
    ],
)
def test_a_failure_has_its_sentence_its_reason_and_whether_another_attempt_could_help(
    error: Exception, reason: str, retryable: bool, text: str
) -> None:
    assert failure_of(error) == Failure(reason=reason, message=text, retryable=retryable)


def test_a_long_message_is_cut() -> None:
    assert len(failure_of(ValueError("x" * 10_000)).message) == 500


def test_a_handler_that_wraps_what_it_met_keeps_the_frames() -> None:
    with pytest.raises(HandlerError) as caught:
        _wrap()
    failure = failure_of(caught.value)
    assert failure.message.startswith("the file is odd\n")
    assert 'in _wrap: int("x")' in failure.message


def _wrap() -> None:
    try:
        int("x")
    except ValueError as error:
        raise HandlerError("the file is odd", retryable=False) from error


class Broken(Exception):
    """Nothing can be told of it."""

    @property
    def retryable(self) -> bool:
        raise ValueError

    def __str__(self) -> str:
        raise ValueError


def test_an_exception_of_which_nothing_can_be_told_fails_its_attempt_all_the_same() -> None:
    assert failure_of(Broken()).message == "Broken, whose text cannot be read (ValueError)"
    assert failure_of(KeyError("\udc80.txt")).message == "KeyError: '\\udc80.txt'"
    assert failure_of(HandlerError("\udc80", retryable=True, reason="\udc80")).reason == "\\udc80"


class NoException(BaseException):
    """Derived from what only the interpreter should derive from."""


@pytest.mark.parametrize("raised", [GeneratorExit(), asyncio.CancelledError(), NoException("x")])
def test_what_no_program_catches_fails_its_attempt(raised: BaseException) -> None:
    for run in (call, call_in_thread):
        with pytest.raises(
            HandlerError, match=f"raised an exception that no program should catch: {type(raised).__name__}"
        ):
            run(Answers(raised), Assignment(), _CONTEXT)


@pytest.mark.parametrize("leaves", [SystemExit(3), KeyboardInterrupt()])
async def test_a_handler_cannot_end_the_process(leaves: BaseException) -> None:
    with pytest.raises(HandlerError, match="tried to exit"):
        call(Answers(leaves), Assignment(), _CONTEXT)
    with pytest.raises(HandlerError, match="tried to exit"):
        await call_async(Answers(leaves), Assignment(), _CONTEXT)


def test_a_result_carries_its_lease_and_the_time_it_ran() -> None:
    result = success(_LEASE, Payload(), 1.25, limit_bytes=100)
    assert result.lease == _LEASE
    assert result.ran.ToNanoseconds() == 1_250_000_000
    assert outcome_of(result) == "succeeded"


def test_a_result_that_is_too_large_is_an_invalid_result() -> None:
    result = success(_LEASE, payload_to_proto({"text": "x" * 200}), 0.0, limit_bytes=100)
    assert result.failure.reason == "INVALID_RESULT"
    assert "the limit is 100" in result.failure.message


def test_a_failure_is_its_own_outcome() -> None:
    assert outcome_of(failed(_LEASE, Failure(reason="HANDLER_ERROR"), 0.0)) == "HANDLER_ERROR"
