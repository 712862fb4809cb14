"""The engine answers as USI requires, and plays legal moves."""

import numpy as np
import pytest

from parlmesh.selfplay.shogi.usi import UsiEngine, position


class First:
    """Takes the first legal move."""

    def greedy(self, observation, mask=None, state=None):
        assert observation.shape == (1, 46, 9, 9)
        return (mask.argmax(axis=1),)

    def act(self, observation, rng, mask=None, state=None):
        return self.greedy(observation, mask)


def said(*lines):
    return list(UsiEngine(First(), form="spatial", name="test").answers(lines))


def test_an_engine_introduces_itself_and_ends_at_quit():
    assert said("usi", "isready", "quit", "usi")[-2:] == ["usiok", "readyok"]


def test_it_plays_a_legal_move_and_refuses_an_illegal_one():
    (answer,) = said("position startpos moves 7g7f 3c3d", "go btime 0 wtime 0 byoyomi 1000")
    move = answer.removeprefix("bestmove ")
    position(f"startpos moves 7g7f 3c3d {move}", "spatial")
    (complaint,) = said("position startpos moves 7g7d")
    assert complaint.startswith("info string 7g7d is not legal")
    with pytest.raises(ValueError, match="startpos or sfen"):
        position("nowhere", "flat")


def test_it_mates_in_one_declares_and_resigns():
    mate = "position sfen 4k4/9/4P4/9/9/9/9/9/4K4 b G 1"
    assert said(mate, "go") == ["bestmove G*5b"]
    assert said("position sfen 4k4/4G4/4P4/9/9/9/9/9/4K4 w - 2", "go") == ["bestmove resign"]
    camp = "position sfen +R+R+B1K4/GGGG5/SSS6/9/9/9/9/9/4k4 b 9P 1"
    assert said(camp, "go") == ["bestmove win"]
    assert said("setoption name Finisher value false", mate, "go") != ["bestmove win"]
    assert np.array(said("unknown")).size == 0
