"""Shogi by its rules: counted positions, both perspectives, and every way a game ends."""

import importlib.util
import re

import numpy as np
import pytest
from rsshogi.core import Board, Move

from parlmesh.selfplay.environment import GameEnvironments
from parlmesh.selfplay.games import Verdict
from parlmesh.selfplay.scripted_players import drawn
from parlmesh.selfplay.shogi.games import START, Shogi, cells_of, hands_of
from parlmesh.selfplay.shogi.move_numbers import move_table

ONE = np.array([0])
PERFT = {1: 30, 2: 900, 3: 25_470, 4: 719_731, 5: 19_861_490}


def perft(board, depth):
    moves = board.legal_moves()
    if depth == 1:
        return len(moves)
    total = 0
    for move in moves:
        board.push_move(move)
        total += perft(board, depth - 1)
        board.pop()
    return total


def game(sfen, *moves, **options):
    """A game from a position, and the verdicts of moves in USI."""
    games = Shogi(1, sfen=sfen, **options)
    games.start(ONE, np.random.default_rng(0))
    verdicts = []
    for usi in moves:
        colour = int(games.colours(ONE)[0])
        number = games._table.number[colour, int(Move.from_usi(usi))]
        assert games.legal(ONE)[0, number], f"{usi} is not legal"
        verdicts.append(int(games.play(ONE, np.array([number]))[0]))
    return games, verdicts


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_perft(depth):
    assert perft(Board(), depth) == PERFT[depth]


@pytest.mark.slow
def test_deep_perft():
    assert perft(Board(), 5) == PERFT[5]


@pytest.mark.parametrize(("form", "choices"), [("flat", 13_527), ("spatial", 11_259)])
def test_every_legal_move_has_a_number_of_its_own_and_the_arrays_follow_the_board(form, choices):
    games, which = Shogi(12, form=form, max_plies=400), np.arange(12)
    assert games.choices == choices
    rng = np.random.default_rng(1)
    games.start(which, rng)
    for _ in range(60):
        legal = games.legal(which)
        assert legal.sum(axis=1).tolist() == [len(games.boards[index].legal_moves()) for index in which]
        verdicts = games.play(which, drawn(legal, rng))
        for index in which.tolist():
            np.testing.assert_array_equal(games._cells[index], cells_of(games.boards[index]))
            np.testing.assert_array_equal(games._hands[index], hands_of(games.boards[index]))
        which = which[verdicts == Verdict.GOES_ON]
    assert len(which)


def test_numbers_and_moves_are_each_others_inverse():
    for form in ("flat", "spatial"):
        table = move_table(form)
        for colour in (0, 1):
            codes = np.flatnonzero(table.number[colour] >= 0)
            numbers = table.number[colour, codes]
            assert len(np.unique(numbers)) == len(numbers)
            np.testing.assert_array_equal(table.move[colour, numbers], codes)


CHASE = "4k4/9/9/9/9/9/9/R8/4K4 b - 1"
MATE = "4k4/9/4P4/9/9/9/9/9/4K4 b G 1"


def turned(sfen):
    """The same position with the board turned and the colours exchanged."""
    cells, turn, hands, ply = sfen.split()
    turn = "w" if turn == "b" else "b"
    return f"{''.join(reversed(re.findall('[+]?.', cells))).swapcase()} {turn} {hands.swapcase()} {ply}"


@pytest.mark.parametrize(("sfen", "usi"), [(MATE, "G*5b"), (turned(MATE), "G*5h")], ids=["black", "white"])
def test_a_mate_wins_for_either_colour_and_the_finisher_finds_it(sfen, usi):
    games, verdicts = game(sfen, usi)
    assert verdicts == [Verdict.WON]
    assert not games.legal(ONE).any()
    games, _ = game(sfen)
    colour = int(games.colours(ONE)[0])
    assert np.flatnonzero(games.winning(ONE)[0]).tolist() == [games._table.number[colour, int(Move.from_usi(usi))]]


def check_mates():
    """Mating pays, for either side and from either view of the board."""
    for sfen, usi in ((MATE, "G*5b"), (turned(MATE), "G*5h")):
        envs = GameEnvironments(1, Shogi, seat="first", options={"sfen": sfen})
        envs.reset(seed=0)
        games = envs.games
        assert isinstance(games, Shogi)
        number = games._table.number[int(games.colours(ONE)[0]), int(Move.from_usi(usi))]
        _, reward, terminated, _, _ = envs.step(np.array([number]))
        assert (float(reward[0]), bool(terminated[0])) == (1.0, True)


def test_mating_pays_on_either_side():
    check_mates()


def test_turning_board_and_colours_gives_the_same_planes_but_for_the_colour():
    sfens = (
        "ln1g1gsnl/1r1sk2b1/p1pppp1pp/1p4p2/9/2P4P1/PP1PPPP1P/1B1K3R1/LNSG1GSNL b - 9",
        "l3k2nl/3r2g2/p1+Bp1p1pp/4p4/9/2P6/PP1+pPPP1P/3S1K3/LN1G1GSNL w RBG2SN3P 40",
    )
    for sfen in sfens:
        (one, other) = (Shogi(1, sfen=each) for each in (sfen, turned(sfen)))
        for waiting in (False, True):
            first, second = (games.planes(ONE, waiting=waiting)[0].copy() for games in (one, other))
            assert (first[42] != second[42]).all()
            first[42] = second[42] = 0
            np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(one.legal(ONE), other.legal(ONE))
        assert one.material(ONE)[0] == pytest.approx(other.material(ONE)[0])


def check_that_turned_games_are_the_same():
    """Move numbers are from the view of the side to move, so a turned game takes the same course."""
    which, rng = np.arange(6), np.random.default_rng(7)
    one, other = (Shogi(6, sfen=sfen, max_plies=120) for sfen in (START, turned(START)))
    for games in (one, other):
        games.start(which, rng)
    while len(which):
        legal = one.legal(which)
        np.testing.assert_array_equal(legal, other.legal(which))
        np.testing.assert_array_equal(one.material(which), other.material(which))
        moves = drawn(legal, rng)
        verdicts = one.play(which, moves)
        np.testing.assert_array_equal(verdicts, other.play(which, moves))
        which = which[verdicts == Verdict.GOES_ON]


def test_turned_games_go_the_same_way_and_are_worth_the_same():
    check_that_turned_games_are_the_same()


def test_a_planted_error_of_colours_is_found(monkeypatch):
    material = Shogi.material
    monkeypatch.setattr(Shogi, "material", lambda self, which: material(self, which) * (1 - 2 * self._first_colour))
    with pytest.raises(AssertionError):
        check_that_turned_games_are_the_same()


def test_a_planted_perspective_error_is_found(monkeypatch):
    from parlmesh.selfplay.shogi import board_planes, games

    original = board_planes.planes_of
    monkeypatch.setattr(
        games, "planes_of", lambda cells, hands, colours, *more: original(cells, hands, 0 * colours, *more)
    )
    with pytest.raises(AssertionError):
        test_turning_board_and_colours_gives_the_same_planes_but_for_the_colour()


def test_the_fourth_occurrence_of_a_position_is_a_draw():
    round_trip = ("2h3h", "8b7b", "3h2h", "7b8b")
    _, verdicts = game(Board().to_sfen(), *round_trip * 3)
    assert verdicts == [Verdict.GOES_ON] * 11 + [Verdict.DRAWN]


def test_perpetual_check_loses():
    # Black's rook checks from two squares; white's king goes to and fro.
    sfen = "4k4/9/9/9/9/9/9/R8/4K4 b - 1"
    _, verdicts = game(sfen, "9h5h", *("5a4a", "5h4h", "4a5a", "4h5h") * 3)
    assert verdicts == [Verdict.GOES_ON] * 12 + [Verdict.LOST]


def test_the_limit_is_told_apart_from_a_draw():
    _, verdicts = game(Board().to_sfen(), "7g7f", "3c3d", max_plies=2)
    assert verdicts == [Verdict.GOES_ON, Verdict.LIMIT]


def repetition(past):
    """The verdict for the side that moved last; `past` has every position, and whether the side to move was in
    check."""
    same = [at for at, (position, _) in enumerate(past) if position == past[-1][0]]
    if len(same) < 4:
        return None
    # From the first of them on, the moves of the side that moved last and those of the other.
    ours, theirs = (all(check for _, check in past[-first : same[0] : -2]) for first in (1, 2))
    return Verdict.LOST if ours else Verdict.WON if theirs else Verdict.DRAWN


def checking(board, moves):
    """The moves that give check."""
    found = []
    for move in moves:
        board.push_move(move)
        if board.is_in_check():
            found.append(move)
        board.pop()
    return found


@pytest.mark.parametrize("sfen", [CHASE, turned(CHASE)], ids=["black", "white"])
def test_repetitions_and_perpetual_checks_are_those_of_a_counter(sfen):
    # Random games hardly ever repeat a position: here a rook chases a king, and both choose among two moves.
    rng, which = np.random.default_rng(3), np.arange(30)
    games, ended = Shogi(30, sfen=sfen, max_plies=400, impasse="none"), []
    past = [[(sfen.rsplit(" ", 1)[0], False)] for _ in which]
    while len(which):
        moves = []
        for index in which.tolist():
            legal = games.boards[index].legal_moves()
            checks = checking(games.boards[index], legal) if index % 3 else []
            choice = sorted(checks or legal, key=int)[-2:]
            moves.append(games.number(index, choice[rng.integers(len(choice))]))
        verdicts = games.play(which, np.array(moves))
        for index, verdict in zip(which.tolist(), verdicts.tolist(), strict=True):
            board = games.boards[index]
            past[index].append((board.to_sfen().rsplit(" ", 1)[0], board.is_in_check()))
            repeated = repetition(past[index])
            assert verdict in ((Verdict.GOES_ON, Verdict.LIMIT, Verdict.WON) if repeated is None else (repeated,))
            assert verdict != Verdict.WON or repeated is not None or not board.legal_moves()
            if repeated is not None:
                ended.append(repeated)
        which = which[verdicts == Verdict.GOES_ON]
    assert set(ended) == {Verdict.DRAWN, Verdict.LOST, Verdict.WON}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(importlib.util.find_spec("cshogi") is None, reason="the referee cshogi is not installed (GPL-3)")
def test_random_games_agree_with_cshogi_and_with_a_counter_of_repetitions():
    import cshogi

    rng, played, repetitions = np.random.default_rng(0), 0, 0
    while played < 1_000:
        which = np.arange(50)
        games = Shogi(50, max_plies=512, impasse="none")
        games.start(which, rng)
        referees = [cshogi.Board() for _ in which]
        past = [[(referee.zobrist_hash(), False)] for referee in referees]
        while len(which):
            for index in which.tolist():
                ours = sorted(move.to_usi() for move in games.boards[index].legal_moves())
                assert ours == sorted(cshogi.move_to_usi(move) for move in referees[index].legal_moves)
            numbers = drawn(games.legal(which), rng)
            codes = games._table.move[games.colours(which), numbers]
            verdicts = games.play(which, numbers)
            for index, code, verdict in zip(which.tolist(), codes.tolist(), verdicts.tolist(), strict=True):
                referee = referees[index]
                referee.push_usi(Move(code).to_usi())
                past[index].append((referee.zobrist_hash(), referee.is_check()))
                if referee.is_game_over():
                    assert verdict == Verdict.WON
                elif (repeated := repetition(past[index])) is not None:
                    assert verdict == repeated
                    repetitions += 1
                else:
                    assert verdict in (Verdict.GOES_ON, Verdict.LIMIT)
            which = which[verdicts == Verdict.GOES_ON]
        played += 50
    print(f"{played} games, {repetitions} ended by repetition")
