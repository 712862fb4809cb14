import pytest

from scheduler.process_memory import Surplus, _resident_bytes, _trim

MB = 1 << 20


def test_much_free_memory_is_given_back_and_memory_in_use_is_left_alone() -> None:
    resident, trims = [100 * MB], []

    def trim() -> None:
        trims.append(resident[0])
        resident[0] = in_use

    in_use = 110 * MB
    surplus = Surplus(lambda: resident[0], trim)
    for size, trimmed in ((150, False), (800, True), (120, False), (700, True)):
        resident[0] = size * MB
        assert surplus.look() is trimmed
    # Now tasks use the memory.
    in_use = 1000 * MB
    for size, trimmed in ((1000, True), (1400, False), (1600, True), (1400, False)):
        resident[0] = size * MB
        assert surplus.look() is trimmed
    assert trims == [800 * MB, 700 * MB, 1000 * MB, 1600 * MB]


@pytest.mark.skipif(not _resident_bytes(), reason="the machine does not say how large a process is")
def test_freed_memory_below_what_is_in_use_goes_back_to_the_machine() -> None:
    # Small blocks are in the heap, and the last one keeps it from shrinking.
    pieces = [bytearray(4096) for _ in range(50_000)]
    full = _resident_bytes()
    last = pieces[-1]
    del pieces
    _trim()
    assert last is not None
    assert _resident_bytes() < full - 100 * MB
