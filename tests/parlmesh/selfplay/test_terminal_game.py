"""A game in the terminal: input, display and record."""

import io

import pytest
from rsshogi.record import Record

from parlmesh.errors import InvalidInput, NotFound
from parlmesh.plugins import load_plugins
from parlmesh.policies import PolicySpec, pack_policy
from parlmesh.policies.torch_networks import ActorCritic
from parlmesh.selfplay.terminal_game import Person, RandomSitter, Sitting, player_from
from parlmesh.types import ActionSpec


def test_a_person_wins_after_a_move_that_was_not_legal(capsys):
    sitting = Sitting(
        "connect_four", [Person(io.StringIO("x\n1\n1\n1\n1\n")), Person(io.StringIO("2\n2\n2\n"))], seed=0
    )
    shown = list(sitting.play())
    assert "'x' is not legal here" in capsys.readouterr().out
    assert shown[-1] == "you win after 7 moves"
    assert "|x o . . . . .|" in shown[-2]


def test_the_end_of_the_input_resigns():
    sitting = Sitting("tictactoe", [Person(io.StringIO("5\n")), RandomSitter(0)], seed=0)
    assert list(sitting.play())[-1] == "you resign; random wins"
    assert sitting.winner == "random"


def test_a_game_of_shogi_is_written_as_other_programs_read_it(tmp_path):
    sitting = Sitting("shogi", [RandomSitter(1), RandomSitter(2)], seed=0)
    shown = sitting.play()
    first = next(shown)
    assert "vLvNvSvGvKvGvSvNvL" in first.replace(" ", "")
    while len(sitting.moves) < 30:
        next(shown)
    for suffix in (".kif", ".csa", ".usi", ".svg"):
        sitting.write(tmp_path / f"game{suffix}")
    kif = Record.from_kif_file(str(tmp_path / "game.kif"))
    csa = Record.from_csa_file(str(tmp_path / "game.csa"))
    usi = (tmp_path / "game.usi").read_text()
    for record in (kif, csa):
        assert [entry.move.to_usi() for entry in record.moves] == sitting.moves
    assert usi.split()[3:] == sitting.moves
    assert "<svg" in (tmp_path / "game.svg").read_text()
    with pytest.raises(InvalidInput, match="kif"):
        sitting.write(tmp_path / "game.txt")


def test_of_a_runs_folder_the_promoted_model_plays_and_searches(tmp_path):
    load_plugins(["selfplay"])
    spec = PolicySpec((2, 3, 3), ActionSpec("discrete", (9,)), network="board", hidden=(4,), masked=True)
    weights = ActorCritic(spec).named_weights()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "v00000007.safetensors").write_bytes(pack_policy(spec, weights))
    with pytest.raises(NotFound, match=r"policy\.safetensors"):
        player_from(tmp_path, [], 0)
    (tmp_path / "models" / "promoted.json").write_text('{"version": 7}')
    sitting = Sitting("tictactoe", [player_from(tmp_path, [], 0, 16), RandomSitter(0)], seed=0)
    assert "wins" in list(sitting.play())[-1] or sitting.winner is None
    (tmp_path / "models" / "promoted.json").write_text("[]")
    with pytest.raises(InvalidInput, match=r"promoted\.json cannot be read"):
        player_from(tmp_path, [], 0)


def test_a_missing_model_and_an_unknown_game_are_named(tmp_path):
    with pytest.raises(NotFound, match="there is no file"):
        player_from(tmp_path / "nothing.safetensors", [], 0)
    with pytest.raises(InvalidInput, match="connect_four"):
        Sitting("chess", [RandomSitter(0), RandomSitter(1)], seed=0)
