from hypothesis import given
from hypothesis import strategies as st

from parlmesh.v1.fleet_service_pb2 import Lease
from parlmesh.varint import LOW, SMALL, SMALL_NUMBERS, varint


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
