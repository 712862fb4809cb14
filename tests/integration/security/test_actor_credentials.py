"""A refused actor says why in one sentence and ends with exit code 4; one whose server is away waits."""

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from parlmesh.security import Role, SecurityConfig
from parlmesh.security.certificates import issue, make_authority
from parlmesh.security.pem_files import write_pair
from parlmesh.testing import Process, free_port, serve, wait_until_async
from parlmesh.testing.fleet import FakeScheduler
from tests.integration.security.conftest import Material

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[3]


@contextmanager
def _actor(address: str, security: SecurityConfig) -> Iterator[Process]:
    keys = {
        name: value
        for name, value in security.model_dump(include={"ca", "certificate", "key", "token_file"}).items()
        if value is not None
    }
    given = [f"scheduler={address}", f"learner={address}", "metrics.port=null", "kinds=[noop]"]
    given += [f"security.{name}={value}" for name, value in keys.items()]
    with Process("actor", *(part for each in given for part in ("--set", each)), cwd=ROOT) as process:
        yield process


async def test_an_actor_whose_certificate_has_expired_ends_with_exit_code_4(tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    authority = make_authority("old", days=100, now=now - datetime.timedelta(days=9))
    ca, _ = write_pair(authority, tmp_path, "ca")
    server = write_pair(issue(authority, "server", hosts=["127.0.0.1"], days=9, now=now), tmp_path, "server")
    past = issue(authority, "late", role=Role.ACTOR, days=1, now=now - datetime.timedelta(days=2))
    certificate, key = write_pair(past, tmp_path, "late")
    secured = SecurityConfig(ca=ca, certificate=server[0], key=server[1])
    async with serve([FakeScheduler().service], secured) as address:
        with _actor(address, SecurityConfig(ca=ca, certificate=certificate, key=key)) as process:
            await _assert_refused(process, "expired")


async def _assert_refused(process: Process, sentence: str) -> None:
    await wait_until_async(lambda: not process.running, 60)
    process.assert_exits(4)
    (line,) = [line for line in process.lines if line.startswith("error: ")]
    assert sentence in line
    assert "Traceback" not in "".join(process.lines)


@pytest.mark.parametrize(
    ("case", "strict", "sentence"),
    [
        ("unknown token", False, "the token is not known here"),
        ("wrong authority", False, "is not trusted by security.ca"),
        ("foreign certificate", True, "refused security.certificate"),
        pytest.param("foreign certificate", False, "not from this fleet's authority", marks=pytest.mark.slow),
        pytest.param("no certificate", True, "wants a certificate of its authority", marks=pytest.mark.slow),
        pytest.param("no security", False, "speaks TLS; set security.ca", marks=pytest.mark.slow),
    ],
)
async def test_an_actor_that_is_refused_ends_with_exit_code_4(
    material: Material, tmp_path: Path, case: str, strict: bool, sentence: str
) -> None:
    wrong = tmp_path / "wrong.token"
    wrong.write_text("x" * 43)
    cases = {
        "unknown token": SecurityConfig(ca=material.ca, token_file=wrong),
        "wrong authority": SecurityConfig(ca=material.other_ca),
        "foreign certificate": material.node(Role.ACTOR, material.folder / "other"),
        "no certificate": SecurityConfig(ca=material.ca),
        "no security": SecurityConfig(),
    }
    async with serve([FakeScheduler().service], material.server(require_client_certificate=strict)) as address:
        with _actor(address, cases[case]) as process:
            await _assert_refused(process, sentence)


async def test_an_actor_has_the_name_in_its_certificate(material: Material) -> None:
    scheduler = FakeScheduler()
    async with serve([scheduler.service], material.server()) as address:
        with _actor(address, material.node(Role.ACTOR)):
            assert (await scheduler.welcomed()).hello.node_id == "actor-1"


async def test_an_actor_whose_scheduler_is_away_waits_for_it(material: Material) -> None:
    with _actor(f"127.0.0.1:{free_port()}", material.node(Role.ACTOR)) as process:
        process.wait_for("disconnected", 60)
        await wait_until_async(lambda: process.running, 1)
        process.terminate()
        await wait_until_async(lambda: not process.running, 60)
        process.assert_exits(0)
