import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.v1.fleet_service_pb2 import Lease
from parlmesh.wire.fields import LOW, SMALL, SMALL_NUMBERS, read_varint, varint


def by_protobuf(number: int) -> bytes:
    return Lease(lease_id=number).SerializeToString()[1:]


@given(st.integers(1, 64).flatmap(lambda bits: st.integers(2 ** (bits - 1), 2**bits - 1)))
def test_varints_are_those_of_protobuf(number: int) -> None:
    assert varint(number) == by_protobuf(number)


def test_the_tables_hold_what_protobuf_writes() -> None:
    assert len(SMALL) == len(LOW) == SMALL_NUMBERS
    assert [b"\x00", *map(by_protobuf, range(1, SMALL_NUMBERS))] == SMALL
    assert [LOW[low] + b"\x01" for low in range(SMALL_NUMBERS)] == [
        by_protobuf(SMALL_NUMBERS + low) for low in range(SMALL_NUMBERS)
    ]


def test_numbers_with_many_different_upper_parts_are_written_right() -> None:
    numbers = [(1 << 40) + (upper << 14) for upper in range(3000)]
    assert [varint(number) for number in numbers] == [by_protobuf(number) for number in numbers]


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_what_is_written_is_read_back_wherever_it_stands(number: int, before: bytes, after: bytes) -> None:
    encoded = before + varint(number) + after
    end = len(encoded) - len(after)
    assert read_varint(encoded, len(before)) == read_varint(memoryview(encoded), len(before)) == (number, end)


@pytest.mark.parametrize("endless", [b"", b"\x80", b"\xff" * 10 + b"\x00"])
def test_a_number_without_an_end_is_refused(endless: bytes) -> None:
    with pytest.raises(ValueError, match="no end"):
        read_varint(endless, 0)
