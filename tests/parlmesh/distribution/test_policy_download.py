import hashlib

import pytest

from parlmesh.digests import fast_digest
from parlmesh.distribution.policy_download import FetchedPolicy, PolicyDownload
from parlmesh.errors import Unavailable
from parlmesh.v1.policy_service_pb2 import POLICY_ENCODING_SAFETENSORS, GetPolicyResponse, PolicyHeader

DATA = bytes(range(256)) * 100
OTHER = DATA[:-1] + b"x"


def header(digest_of: bytes = DATA, checksum: bytes = fast_digest(DATA)) -> PolicyHeader:
    return PolicyHeader(
        run_id="run",
        version=1,
        digest=hashlib.sha256(digest_of).digest(),
        size_bytes=len(DATA),
        encoding=POLICY_ENCODING_SAFETENSORS,
        checksum=checksum,
    )


async def arrived(head: PolicyHeader, data: bytes, *, announced_elsewhere: bool = False) -> FetchedPolicy:
    """What a reader makes of two chunks."""
    download = PolicyDownload(1 << 20, announced_elsewhere=announced_elsewhere)
    download.add(GetPolicyResponse(header=head, data=data[:9_999]).SerializeToString())
    download.add(GetPolicyResponse(data=data[9_999:]).SerializeToString())
    return await download.policy()


@pytest.mark.parametrize("checksum", [fast_digest(DATA), b""], ids=["checksum", "digest alone"])
@pytest.mark.parametrize("announced_elsewhere", [False, True])
async def test_intact_bytes_are_taken_under_the_announced_digest(checksum: bytes, announced_elsewhere: bool) -> None:
    found = await arrived(header(checksum=checksum), DATA, announced_elsewhere=announced_elsewhere)
    assert (found.data, found.digest) == (DATA, hashlib.sha256(DATA).digest())


@pytest.mark.parametrize(
    "checksum", [fast_digest(DATA), b"", b"short"], ids=["checksum", "digest alone", "bad checksum"]
)
async def test_bytes_that_changed_on_the_way_are_refused(checksum: bytes) -> None:
    with pytest.raises(Unavailable, match="does not match") as refused:
        await arrived(header(checksum=checksum), OTHER)
    assert refused.value.reason == "POLICY_CORRUPT"


async def test_a_checksum_proves_nothing_where_the_digest_was_announced_by_another_server() -> None:
    with pytest.raises(Unavailable, match="its digest does not match"):
        await arrived(header(checksum=fast_digest(OTHER)), OTHER, announced_elsewhere=True)
