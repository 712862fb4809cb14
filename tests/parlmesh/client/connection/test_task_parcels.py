import asyncio

from hypothesis import given
from hypothesis import strategies as st

from parlmesh.client.connection.outgoing_tasks import Outgoing
from parlmesh.client.connection.task_parcels import Parcel, halves
from parlmesh.errors import InvalidInput, Unavailable


def parcel(*sizes: int, first: int = 0, ordered: bool = False) -> Parcel:
    made = Parcel(ordered=ordered)
    for offset, size in enumerate(sizes):
        made.add(f"t{first + offset}", bytes(size))
    return made


def ids(parcels: list[Parcel]) -> list[str]:
    return [task_id for one in parcels for task_id in one.task_ids]


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=8), max_size=10))
def test_every_task_leaves_once_in_order_and_within_the_limits(shapes: list[list[int]]) -> None:
    outgoing = Outgoing(most_tasks=10, most_bytes=100)
    first, expected = 0, list[str]()
    for sizes in shapes:
        one = parcel(*sizes, first=first)
        first += len(sizes)
        expected += one.task_ids
        outgoing.put(one)
    seen: list[str] = []
    while taken := outgoing.take(others_in_flight=False):
        seen += ids(taken)
        if len(taken) > 1:
            assert len(ids(taken)) <= 10
            assert sum(one.size for one in taken) <= 100
    assert seen == expected
    assert not outgoing.ready.is_set()


def test_what_depends_on_others_waits_for_those_in_flight_and_holds_back_what_follows() -> None:
    outgoing = Outgoing(most_tasks=10, most_bytes=100)
    outgoing.put(parcel(1, first=0))
    outgoing.put(parcel(1, first=1, ordered=True))
    outgoing.put(parcel(1, first=2))
    assert ids(outgoing.take(others_in_flight=True)) == ["t0"]
    assert outgoing.take(others_in_flight=True) == []
    assert ids(outgoing.take(others_in_flight=False)) == ["t1", "t2"]


async def test_a_parcel_nobody_waits_for_is_not_sent() -> None:
    outgoing = Outgoing(most_tasks=10, most_bytes=100)
    left = parcel(1)
    left.receipt = asyncio.get_running_loop().create_future()
    left.receipt.cancel()
    outgoing.put(left)
    outgoing.put(parcel(1, first=1))
    assert ids(outgoing.take(others_in_flight=False)) == ["t1"]


@given(st.integers(1, 40), st.sets(st.integers(0, 39)))
def test_halving_finds_exactly_the_bad_tasks(count: int, bad: set[int]) -> None:
    culprits: list[str] = []

    def deliver(parcels: list[Parcel]) -> None:
        if not any(int(task_id[1:]) in bad for task_id in ids(parcels)):
            return
        parts = halves(parcels)
        if parts is None:
            culprits.extend(ids(parcels))
            return
        assert ids(parts[0]) + ids(parts[1]) == ids(parcels)
        for part in parts:
            deliver(part)

    deliver([parcel(*[1] * count)])
    assert culprits == [f"t{number}" for number in sorted(bad) if number < count]


async def test_a_whole_parcel_is_never_divided() -> None:
    whole = parcel(1, 1)
    whole.receipt = asyncio.get_running_loop().create_future()
    assert halves([whole]) is None
    other = parcel(1, first=2)
    assert halves([whole, other]) == ([whole], [other])


def test_a_part_keeps_the_ids_that_were_chosen() -> None:
    one = parcel(1, 2, 3)
    one.chosen_ids.extend(["t0", "t2"])
    left, right = halves([one]) or ([], [])
    assert (left[0].chosen_ids, right[0].chosen_ids) == (["t0"], ["t2"])
    assert (left[0].size, right[0].size) == (1, 5)


async def test_receipts_tell_of_acceptance_and_refusal_once() -> None:
    loop = asyncio.get_running_loop()
    accepted, refused = parcel(1), parcel(1)
    accepted.receipt, refused.receipt = loop.create_future(), loop.create_future()
    accepted.accept()
    accepted.refuse(InvalidInput("too late"))
    assert await accepted.receipt is None  # type: ignore[func-returns-value]
    outgoing = Outgoing(most_tasks=1, most_bytes=1)
    outgoing.put(refused)
    outgoing.refuse_all(Unavailable("closed"))
    assert isinstance(refused.receipt.exception(), Unavailable)
    assert outgoing.take(others_in_flight=False) == []


@given(st.integers(1, 20), st.sets(st.integers(0, 19)))
def test_of_a_divisible_parcel_what_is_still_pending_is_sent_again(count: int, pending: set[int]) -> None:
    one = parcel(*range(1, count + 1))
    wanted = one.wanted({f"t{number}" for number in pending})
    kept = [number for number in range(count) if number in pending]
    if not kept:
        assert wanted is None
    else:
        assert wanted is not None
        assert wanted.task_ids == [f"t{number}" for number in kept]
        assert [len(task) for task in wanted.tasks] == [number + 1 for number in kept]


async def test_a_whole_parcel_is_wanted_whole_or_not_at_all() -> None:
    whole = parcel(1, 1)
    whole.receipt = asyncio.get_running_loop().create_future()
    assert whole.wanted(set()) is whole
    whole.receipt.cancel()
    assert whole.wanted({"t0", "t1"}) is None


def test_what_nobody_waits_for_is_dropped_before_it_is_sent() -> None:
    outgoing = Outgoing(most_tasks=10, most_bytes=100)
    outgoing.put(parcel(1, 1))
    outgoing.put(parcel(1, first=2))
    outgoing.put(parcel(1, first=3))
    assert outgoing.prune({"t1", "t3"}) == {"t0", "t2"}
    assert ids(outgoing.take(others_in_flight=False)) == ["t1", "t3"]
