import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import parlmesh.errors
from parlmesh.errors import ConfigError, FleetError, InvalidInput, NotFound, ResourceExhausted, Unavailable
from parlmesh.rpc import error_from_rpc, error_from_status, status_from_error
from parlmesh.rpc.error_statuses import DETAILS_KEY, STATUS_BY_ERROR, fleet_error_in, status_code

ALL_ERRORS = [
    kind for kind in vars(parlmesh.errors).values() if isinstance(kind, type) and issubclass(kind, FleetError)
]


class _OfAService(NotFound):
    default_reason = "NO_SUCH_TASK"


def rpc_error(error: FleetError) -> grpc.aio.AioRpcError:
    status = status_from_error(error)
    trailers = grpc.aio.Metadata((DETAILS_KEY, status.SerializeToString()))
    return grpc.aio.AioRpcError(status_code(error), grpc.aio.Metadata(), trailers, details=status.message)


def test_the_table_has_every_error() -> None:
    assert set(STATUS_BY_ERROR) == set(ALL_ERRORS)


def test_only_configuration_shares_its_status() -> None:
    codes = [code for error, code in STATUS_BY_ERROR.items() if error is not ConfigError]
    assert len(set(codes)) == len(codes)


def test_an_error_of_a_service_has_the_status_of_its_parent() -> None:
    assert status_code(_OfAService("gone")) is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("kind", [kind for kind in ALL_ERRORS if kind is not ConfigError])
def test_an_error_comes_back_over_the_wire_as_it_went(kind: type[FleetError]) -> None:
    sent = kind("it failed", reason="WHY", task="t1", limit=4)
    for got in (error_from_rpc(rpc_error(sent)), error_from_status(status_from_error(sent))):
        assert type(got) is kind
        assert (got.message, got.reason, got.metadata) == ("it failed", "WHY", {"task": "t1", "limit": "4"})


def test_the_default_reason_travels() -> None:
    assert error_from_rpc(rpc_error(_OfAService("gone"))).reason == "NO_SUCH_TASK"


@given(st.floats(min_value=1e-6, max_value=1e6))
def test_the_retry_hint_travels(seconds: float) -> None:
    got = error_from_rpc(rpc_error(ResourceExhausted("full", retry_after_seconds=seconds)))
    assert isinstance(got, ResourceExhausted)
    assert got.retry_after_seconds == pytest.approx(seconds, abs=1e-9)


def test_no_hint_means_no_retry_info() -> None:
    assert len(status_from_error(ResourceExhausted("full")).details) == 1


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_status_of_a_foreign_server_is_some_error(code: grpc.StatusCode) -> None:
    got = error_from_rpc(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=""))
    assert type(got) is {value: key for key, value in STATUS_BY_ERROR.items() if key is not ConfigError}.get(
        code, FleetError
    )
    assert got.message == code.name
    assert got.reason == (code.name if type(got) is FleetError else type(got).default_reason)


def test_details_that_contradict_the_status_do_not_win() -> None:
    trailers = grpc.aio.Metadata((DETAILS_KEY, status_from_error(NotFound("gone")).SerializeToString()))
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), trailers, details="down")
    assert type(error_from_rpc(error)) is Unavailable
    assert error_from_rpc(error).message == "down"


def test_a_status_that_grpc_lost_is_worth_another_try() -> None:
    lost = grpc.aio.AioRpcError(
        grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), details="Internal error from Core"
    )
    assert type(error_from_rpc(lost)) is Unavailable
    assert error_from_rpc(lost).reason == "STREAM_ENDED"
    ours = error_from_rpc(rpc_error(FleetError("internal error 1234")))
    assert (type(ours), ours.message) == (FleetError, "internal error 1234")


@pytest.mark.parametrize("details", [b"\xff\xff\xff", b""])
def test_details_that_cannot_be_parsed_are_ignored(details: bytes) -> None:
    trailers = grpc.aio.Metadata((DETAILS_KEY, details))
    error = grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, grpc.aio.Metadata(), trailers, details="gone")
    assert error_from_rpc(error).message == "gone"


@given(message=st.text(max_size=5000), value=st.text(max_size=5000), count=st.integers(0, 200))
def test_details_stay_small_enough_for_trailers(message: str, value: str, count: int) -> None:
    metadata = {f"key{number}": value for number in range(count)}
    status = status_from_error(InvalidInput(message, reason="", **metadata))
    assert len(status.message.encode()) <= 1024
    assert status.ByteSize() < 4096


def test_a_group_of_one_error_is_that_error() -> None:
    error = NotFound("gone")
    assert fleet_error_in(error) is error
    assert fleet_error_in(ExceptionGroup("g", [ExceptionGroup("h", [error])])) is error


def test_a_group_that_hides_a_defect_is_a_defect() -> None:
    assert fleet_error_in(ExceptionGroup("g", [NotFound("gone"), ValueError("x")])) is None
    assert fleet_error_in(ValueError("x")) is None
