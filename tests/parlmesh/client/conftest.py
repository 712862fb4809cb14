from collections.abc import AsyncIterator

import pytest

from parlmesh.client import ClientConfig, PARLController
from parlmesh.testing import serve
from parlmesh.testing.tasks import FakeTasks

QUICK = ClientConfig(submitter="me", connect_seconds=10, call_seconds=10, wait_seconds=10, reconnect_seconds=0.05)


@pytest.fixture
def fake() -> FakeTasks:
    return FakeTasks()


@pytest.fixture
async def controller(fake: FakeTasks) -> AsyncIterator[PARLController]:
    async with serve([fake.service]) as address, await PARLController.connect(address, config=QUICK) as connected:
        yield connected
