import asyncio
import io
import json
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.config import LogConfig
from parlmesh.telemetry import bind, configure_logging, get_logger
from parlmesh.telemetry.log_rate_limit import BY_EVENT, LEFT_OUT, LineLimit

log = get_logger("parlmesh.test")


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logging_to(
    monkeypatch: pytest.MonkeyPatch,
    format: Literal["json", "pretty"] = "json",
    level: Literal["debug", "info", "warning", "error"] = "info",
) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure_logging(LogConfig(format=format, level=level), "learner")
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_event_service_level_and_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = logging_to(monkeypatch)
    log.info("trajectory_rejected", policy_lag=9, limit=4, node="a b")
    (line,) = lines(stream)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "service": "learner",
        "logger": "parlmesh.test",
        "event": "trajectory_rejected",
        "policy_lag": 9,
        "limit": 4,
        "node": "a b",
    }


def test_lines_below_the_level_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = logging_to(monkeypatch, level="warning")
    log.debug("a")
    log.info("b")
    log.warning("c")
    log.error("d")
    assert [line["event"] for line in lines(stream)] == ["c", "d"]


@pytest.mark.parametrize("name", ["token", "key", "secret", "password", "api_key", "client_secret", "Authorization"])
def test_fields_named_like_secrets_are_masked_wherever_they_are(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for format in ("json", "pretty"):
        stream = logging_to(monkeypatch, format)
        log.info("started", **{name: "hunter2"})
        log.info("started", config={"security": {name: "hunter2"}}, many=[{name: "hunter2"}])
        assert "hunter2" not in stream.getvalue()
        assert stream.getvalue().count("***") == 3


def test_what_is_not_a_secret_is_not_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = logging_to(monkeypatch)
    log.info("x", tokens=3, keyboard="y", token=None)
    assert (lines(stream)[0]["tokens"], lines(stream)[0]["keyboard"], lines(stream)[0]["token"]) == (3, "y", None)


def test_a_field_cannot_overwrite_the_line_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = logging_to(monkeypatch)
    log.info("real", event="fake", level="fake", service="fake")
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["service"]) == ("real", "info", "learner")
    assert (line["event_"], line["level_"], line["service_"]) == ("fake", "fake", "fake")


def test_the_second_configuration_replaces_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    first = logging_to(monkeypatch)
    second = logging_to(monkeypatch)
    log.info("once")
    assert (first.getvalue(), len(lines(second))) == ("", 1)


def test_bound_fields_are_on_every_line_inside_and_none_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = logging_to(monkeypatch)
    with bind(request_id="r1"), bind(node="n"):
        log.info("inside", node="own")
    log.info("outside")
    inside, outside = lines(stream)
    assert (inside["request_id"], inside["node"]) == ("r1", "own")
    assert "request_id" not in outside


async def test_bound_fields_stay_in_their_task(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = logging_to(monkeypatch)
    both = asyncio.Barrier(2)

    async def work(name: str) -> None:
        with bind(request_id=name):
            await both.wait()
            log.info(name)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(work("a"))
        group.create_task(work("b"))
    assert sorted((line["event"], line["request_id"]) for line in lines(stream)) == [("a", "a"), ("b", "b")]


def test_an_exception_carries_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = logging_to(monkeypatch)
    kept: Exception | None = None
    try:
        raise ValueError("broken")
    except ValueError as error:
        kept = error
        log.exception("failed_inside")
    log.exception("failed_later", kept)
    for line in lines(stream):
        assert "ValueError: broken" in line["exception"]


def test_lines_of_libraries_join_in(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = logging_to(monkeypatch)
    logging.getLogger("grpc").warning("lost %s", "connection")
    assert (lines(stream)[0]["event"], lines(stream)[0]["logger"]) == ("lost connection", "grpc")


class _Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_no_value_can_break_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = logging_to(monkeypatch)
    log.info("x", nan=float("nan"), inf=float("inf"), odd=_Unprintable(), long="x" * 10_000, raw=b"\xff")
    (line,) = lines(stream)
    assert (line["nan"], line["inf"]) == ("nan", "inf")
    assert "RuntimeError" in line["odd"]
    assert len(line["long"]) < 3000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(event=st.text(max_size=20), value=json_values)
def test_every_line_is_one_line_of_strict_json(event: str, value: object) -> None:
    for format in ("json", "pretty"):
        with pytest.MonkeyPatch.context() as monkeypatch:
            stream = logging_to(monkeypatch, format)
            log.info(event, value=value)
        text = stream.getvalue()
        assert text.endswith("\n")
        if format == "json":
            assert text.count("\n") == 1
            parsed = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
            assert parsed["event"] == event


@given(value=st.text(max_size=40))
def test_no_value_can_fake_a_pretty_line(value: str) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        stream = logging_to(monkeypatch, "pretty")
        log.info("happened", value=value, last=1)
    text = stream.getvalue()
    assert len(text.splitlines()) == 1
    assert text.endswith(" last=1\n")


def test_a_pretty_line_is_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = logging_to(monkeypatch, "pretty")
    log.info("server_started", address="127.0.0.1:1", words="two words")
    assert stream.getvalue().split(" ", 1)[1] == 'info    server_started address=127.0.0.1:1 words="two words"\n'


@pytest.mark.parametrize("format", ["json", "pretty"])
def test_no_character_that_does_not_show_reaches_the_stream(
    monkeypatch: pytest.MonkeyPatch, format: Literal["json", "pretty"]
) -> None:
    nasty = "\x1b[2J\x9b\u202e\u2028\u2066\x7f"
    stream = logging_to(monkeypatch, format)
    logging.getLogger("library").warning("a sentence %s", nasty)
    try:
        raise ValueError(f"{nasty}\n12:00:00.000 info    a faked line")
    except ValueError:
        log.exception("failed", name_of=nasty, nested={nasty: [nasty]})
    text = stream.getvalue()
    assert text.replace("\n", "").isprintable()
    assert not [line for line in text.splitlines() if line.startswith("12:00:00.000")]


def test_a_flood_of_one_event_does_not_fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, refused = logging_to(monkeypatch), BY_EVENT["call_refused"]
    audit = get_logger("parlmesh.audit")
    started = time.monotonic()
    for _ in range(5000):
        audit.warning("call_refused", method="/parlmesh.v1.SchedulerService/ListTasks")
    most = refused.burst + refused.per_second * (time.monotonic() - started + 1.0)
    (limit,) = [
        each for handler in logging.getLogger().handlers for each in handler.filters if isinstance(each, LineLimit)
    ]
    limit.tell()
    *written, told = lines(stream)
    assert refused.burst <= len(written) <= most
    assert (told["event"], told["by_event"]) == (LEFT_OUT, {"call_refused": 5000 - len(written)})


def test_a_program_that_has_set_no_logging_up_sees_the_fields_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log.warning("local_fleet", note="actor-0 ended and is started again", token="secret")
    assert capsys.readouterr().err == 'local_fleet note="actor-0 ended and is started again" token=***\n'
