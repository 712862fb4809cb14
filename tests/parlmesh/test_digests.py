import hashlib

import pytest

from parlmesh.digests import fast_digest, hasher_for
from parlmesh.errors import InvalidInput


@pytest.mark.parametrize("digest", [fast_digest(b"abc"), hashlib.sha256(b"abc").digest()])
def test_a_digest_is_checked_by_what_made_it(digest: bytes) -> None:
    hasher = hasher_for(digest.hex())
    for part in (b"a", b"bc"):
        hasher.update(memoryview(part))
    assert hasher.digest() == digest


def test_a_fast_digest_is_xxh3_128_as_the_contract_says() -> None:
    # From the reference implementation: echo -n | xxh128sum
    assert fast_digest(b"").hex() == "99aa06d3014798d86001c324468d497f"


@pytest.mark.parametrize("length", [0, 15, 64])
def test_a_digest_of_another_length_is_refused_with_its_length(length: int) -> None:
    with pytest.raises(InvalidInput, match=f"got {length}"):
        hasher_for(bytes(length).hex())
