import logging
import os
import stat
from pathlib import Path

import pytest
import yaml

from parlmesh.errors import AlreadyExists, ConfigError, InvalidInput
from parlmesh.security import Identity, Role
from parlmesh.security.tokens import TokenTable, digest, new_token, read_rows, write_token
from parlmesh.testing import HandClock


def table(tmp_path: Path, *rows: tuple[str, str, str], clock: HandClock | None = None) -> TokenTable:
    return TokenTable(rewritten(tmp_path, *rows), clock or HandClock())


def rewritten(tmp_path: Path, *rows: tuple[str, str, str]) -> Path:
    file = tmp_path / "tokens.yaml"
    content = [{"name": name, "role": role, "sha256": digest(token)} for name, role, token in rows]
    file.write_text(yaml.safe_dump(content))
    return file


def test_a_token_is_256_random_bits() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 43


def test_a_known_token_is_its_owner_and_no_other_is_anyone(tmp_path: Path) -> None:
    first, second = new_token(), new_token()
    tokens = table(tmp_path, ("a", "actor", first), ("b", "operator", second))
    assert tokens.find(first) == Identity("a", Role.ACTOR)
    assert tokens.find(second) == Identity("b", Role.OPERATOR)
    for wrong in ("", new_token(), first[:-1], first + "x", digest(first), first.swapcase()):
        assert tokens.find(wrong) is None


def test_a_name_may_have_two_tokens_while_one_replaces_the_other(tmp_path: Path) -> None:
    tokens = table(tmp_path, ("a", "actor", "old"), ("a", "actor", "new"))
    assert tokens.find("old") == tokens.find("new") == Identity("a", Role.ACTOR)


def test_a_changed_file_is_read_again_after_a_second(tmp_path: Path) -> None:
    clock = HandClock()
    tokens = table(tmp_path, ("a", "actor", "old"), clock=clock)
    rewritten(tmp_path, ("b", "actor", "second"), ("c", "actor", "third"))
    assert tokens.find("old") is not None
    clock.advance(1.0)
    assert tokens.find("old") is None
    assert tokens.find("third") == Identity("c", Role.ACTOR)


def test_a_file_that_became_wrong_is_reported_once_and_the_last_good_one_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = HandClock()
    tokens = table(tmp_path, ("a", "actor", "t"), clock=clock)
    (tmp_path / "tokens.yaml").write_text("- {name: a}")
    for _ in range(3):
        clock.advance(2.0)
        assert tokens.find("t") == Identity("a", Role.ACTOR)
    assert [record.getMessage() for record in caplog.records] == ["token_file_refused"]
    assert caplog.records[0].levelno == logging.ERROR


def test_a_file_that_is_gone_accepts_nobody_until_it_is_back(tmp_path: Path) -> None:
    clock = HandClock()
    tokens = table(tmp_path, ("a", "actor", "t"), clock=clock)
    (tmp_path / "tokens.yaml").rename(tmp_path / "away.yaml")
    clock.advance(2.0)
    assert tokens.find("t") is None
    (tmp_path / "away.yaml").rename(tmp_path / "tokens.yaml")
    clock.advance(2.0)
    assert tokens.find("t") == Identity("a", Role.ACTOR)


def test_a_token_of_a_namespace_is_an_identity_of_it(tmp_path: Path) -> None:
    file, line = write_token(tmp_path, "ada", Role.OPERATOR, force=False, namespace="team-a")
    assert 'namespace: "team-a"' in line
    found = TokenTable(tmp_path / "tokens.yaml", HandClock()).find(file.read_text().strip())
    assert found == Identity("ada", Role.OPERATOR, "team-a")
    assert str(found) == "operator ada of team-a"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("name: a", "must be a list of {name, role, sha256}"),
        ("- {name: a, role: actor}", "row 0.sha256: field required"),
        (f"- {{name: a, role: king, sha256: '{'0' * 64}'}}", "row 0.role"),
        (f"- {{name: '../a', role: actor, sha256: '{'0' * 64}'}}", "row 0.name"),
        ("- {name: a, role: actor, sha256: hunter2}", "row 0.sha256"),
        (f"- {{name: a, role: actor, sha256: '{'0' * 64}', token: x}}", "row 0.token"),
        ("[", "is not valid YAML"),
        (f"- &r {{name: a, role: actor, sha256: '{'0' * 64}'}}\n- *r", "has the same sha256 twice"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_showing_its_values(tmp_path: Path, text: str, part: str) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        TokenTable(file, HandClock())
    assert part in error.value.message
    assert str(file) in error.value.message
    assert "hunter2" not in error.value.message
    assert error.value.reason == "SECURITY"


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        TokenTable(tmp_path / "none.yaml", HandClock())


def test_a_written_token_is_secret_and_its_row_is_accepted(tmp_path: Path) -> None:
    file, line = write_token(tmp_path / "certs", "007", Role.ACTOR, force=False)
    write_token(tmp_path / "certs", "on", Role.READER, force=False)
    token = file.read_text().strip()
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert token not in line
    assert line in (tmp_path / "certs" / "tokens.yaml").read_text()
    tokens = TokenTable(tmp_path / "certs" / "tokens.yaml", HandClock())
    assert tokens.find(token) == Identity("007", Role.ACTOR)
    assert [row.name for row in read_rows(tmp_path / "certs" / "tokens.yaml")] == ["007", "on"]


def test_a_token_is_replaced_only_when_asked(tmp_path: Path) -> None:
    file, _ = write_token(tmp_path, "a", Role.ACTOR, force=False)
    old = file.read_text()
    with pytest.raises(AlreadyExists, match=r"a\.token exists; --force replaces it"):
        write_token(tmp_path, "a", Role.ACTOR, force=False)
    assert file.read_text() == old
    write_token(tmp_path, "a", Role.OPERATOR, force=True)
    assert file.read_text() != old
    (row,) = read_rows(tmp_path / "tokens.yaml")
    assert (row.role, row.sha256) == (Role.OPERATOR, digest(file.read_text().strip()))


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a b", "-a", "x" * 64, "a\n"])
def test_a_name_that_could_be_a_path_is_refused_and_nothing_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="name must be"):
        write_token(tmp_path, name, Role.ACTOR, force=False)
    assert not list(tmp_path.iterdir())
