from pathlib import Path

import pytest

from parlmesh.dashboard.access import (
    ALL_FAILURES_PER_MINUTE,
    COOKIE,
    FAILURES_PER_MINUTE,
    MOST_SESSIONS,
    SESSION_SECONDS,
    Access,
    same_origin,
)
from parlmesh.dashboard.config import DashboardConfig
from parlmesh.security import Role
from parlmesh.security.tokens import write_token
from parlmesh.testing import HandClock


def token_of(folder: Path, name: str, role: Role, namespace: str = "") -> str:
    file, _ = write_token(folder, name, role, force=False, namespace=namespace)
    return file.read_text().strip()


def test_on_this_machine_everyone_may_act_unless_the_page_is_read_only() -> None:
    assert (me := Access(DashboardConfig()).visitor({})) is not None
    assert me.may_act
    assert (reader := Access(DashboardConfig(read_only=True)).visitor({})) is not None
    assert not reader.may_act


def test_a_site_whose_name_points_to_this_machine_is_refused() -> None:
    access = Access(DashboardConfig())
    assert [access.admits_host(host) for host in ("127.0.0.1:8700", "localhost:8700", "[::1]:8700")] == [True] * 3
    assert [access.admits_host(host) for host in ("evil.example:8700", "", "127.0.0.1.evil.example")] == [False] * 3


def test_readers_look_operators_act_and_nobody_else_comes_in(tmp_path: Path) -> None:
    tokens = {role: token_of(tmp_path, f"a-{role}", role) for role in Role}
    of_a_namespace = token_of(tmp_path, "guest", Role.OPERATOR, namespace="team")
    access = Access(DashboardConfig(tokens=tmp_path / "tokens.yaml"))
    assert access.visitor({}) is None
    assert access.visitor({COOKIE: "made up"}) is None
    for wrong in (tokens[Role.ACTOR], of_a_namespace, "made up", ""):
        assert access.log_in(wrong) == ""
    for role, may_act in ((Role.READER, False), (Role.OPERATOR, True)):
        visitor = access.visitor({COOKIE: access.log_in(tokens[role])})
        assert visitor is not None
        assert (visitor.name, visitor.may_act) == (f"a-{role}", may_act)


def test_a_session_ends_with_its_time_its_token_or_by_leaving(tmp_path: Path) -> None:
    clock = HandClock()
    token = token_of(tmp_path, "ada", Role.READER)
    access = Access(DashboardConfig(tokens=tmp_path / "tokens.yaml"), clock)
    first, second, third = (access.log_in(token) for _ in range(3))
    access.log_out(first)
    assert access.visitor({COOKIE: first}) is None
    assert access.visitor({COOKIE: second}) is not None
    clock.advance(SESSION_SECONDS + 1)
    assert access.visitor({COOKIE: second}) is None
    third = access.log_in(token)
    (tmp_path / "tokens.yaml").write_text("[]")
    clock.advance(60)
    assert access.visitor({COOKIE: third}) is None


def test_guessing_tokens_is_slowed_down_and_locks_nobody_else_out(tmp_path: Path) -> None:
    clock = HandClock()
    token = token_of(tmp_path, "ada", Role.READER)
    access = Access(DashboardConfig(tokens=tmp_path / "tokens.yaml"), clock)
    for _ in range(FAILURES_PER_MINUTE):
        assert not access.throttled("10.0.0.1")
        access.log_in("guess", "10.0.0.1")
    assert access.throttled("10.0.0.1")
    assert not access.throttled("10.0.0.2")
    assert access.log_in(token, "10.0.0.2")
    clock.advance(61)
    assert not access.throttled("10.0.0.1")


def test_guesses_from_very_many_addresses_have_one_try_each(tmp_path: Path) -> None:
    token = token_of(tmp_path, "ada", Role.READER)
    access = Access(DashboardConfig(tokens=tmp_path / "tokens.yaml"), HandClock())
    addresses = [f"2001:db8::{number:x}" for number in range(ALL_FAILURES_PER_MINUTE)]
    for address in addresses:
        access.log_in("guess", address)
    assert all(access.throttled(address) for address in addresses)
    assert not access.throttled("10.0.0.2")
    assert access.log_in(token, "10.0.0.2")


def test_behind_a_proxy_the_address_is_what_the_proxy_says_and_not_what_the_visitor_says() -> None:
    claimed = {"x-forwarded-for": "10.9.9.9, 10.0.0.7"}
    behind = Access(DashboardConfig(behind_proxy=True))
    assert behind.address("10.0.0.1", claimed) == "10.0.0.7"
    assert behind.address("10.0.0.1", {}) == "10.0.0.1"
    assert Access(DashboardConfig()).address("10.0.0.1", claimed) == "10.0.0.1"


def test_nobody_ends_another_s_sessions_by_opening_many(tmp_path: Path) -> None:
    ada, bob = (token_of(tmp_path, name, Role.READER) for name in ("ada", "bob"))
    access = Access(DashboardConfig(tokens=tmp_path / "tokens.yaml"))
    of_ada = access.log_in(ada)
    of_bob = [access.log_in(bob) for _ in range(MOST_SESSIONS + 1)]
    assert access.visitor({COOKIE: of_ada}) is not None
    assert access.visitor({COOKIE: of_bob[-1]}) is not None
    assert access.visitor({COOKIE: of_bob[0]}) is None


def test_a_form_of_another_site_or_session_is_refused(tmp_path: Path) -> None:
    token = token_of(tmp_path, "ada", Role.OPERATOR)
    access = Access(DashboardConfig(tokens=tmp_path / "tokens.yaml"))
    mine, other = (access.visitor({COOKIE: access.log_in(token)}) for _ in range(2))
    assert mine is not None
    assert other is not None
    ours = {"host": "page:1", "origin": "https://page:1", "sec-fetch-site": "same-origin"}
    assert access.own_form(mine, mine.csrf, ours)
    assert not access.own_form(mine, other.csrf, ours)
    assert not access.own_form(mine, "", ours)
    assert not access.own_form(mine, mine.csrf, {**ours, "origin": "https://evil.example"})
    assert not access.own_form(mine, mine.csrf, {**ours, "sec-fetch-site": "cross-site"})


@pytest.mark.parametrize(
    ("headers", "same"),
    [({}, True), ({"origin": "null"}, False), ({"origin": "http://a", "x-forwarded-host": "a", "host": "b"}, True)],
)
def test_the_browsers_word_on_the_origin(headers: dict[str, str], same: bool) -> None:
    assert same_origin(headers) is same
