"""A column is one side of one game: its view, sign, mask and outcome, and nothing of the previous game."""

import numpy as np
import pytest

from parlmesh.environments.two_players import NEWEST, Opponent
from parlmesh.errors import InvalidInput
from parlmesh.policies.numpy_acting import Choice
from parlmesh.rollouts import play_match
from parlmesh.selfplay import environment
from parlmesh.selfplay.environment import GameEnvironments
from parlmesh.selfplay.games import OTHER_SIDE, Verdict
from parlmesh.selfplay.games.connect_four import ConnectFour
from parlmesh.selfplay.games.tictactoe import TicTacToe
from parlmesh.selfplay.opponent_seats import RESIGNS
from parlmesh.selfplay.scripted_players import drawn


class Scripted:
    """Plays given columns one after the other; RESIGNS resigns."""

    def __init__(self, *moves):
        self.moves, self.seen = list(moves), []

    def act(self, observation, rng, mask=None, state=None):
        self.seen.append(observation.copy())
        return (np.full(len(observation), self.moves.pop(0)),)

    def greedy(self, observation, mask=None, state=None):
        return self.act(observation, None)


def game(seat, *replies, **settings):
    envs = GameEnvironments(1, ConnectFour, seat=seat, **settings)
    other = Scripted(*replies)
    envs.face([Opponent(7, other)])
    return envs, other, envs.reset(seed=1)[0]


def played(envs, *moves):
    return [envs.step(np.array([move])) for move in moves]


def check_signs():
    """The side that completes a line is paid, the other pays, whoever began."""
    for seat, moves, replies, reward in (
        ("first", (0, 0, 0, 0), (1, 1, 1), 1.0),
        ("first", (0, 1, 0, 1), (6, 6, 6, 6), -1.0),
        ("second", (1, 2, 1), (0, 0, 0, 0), -1.0),
        ("second", (1, 1, 1, 1), (0, 3, 0, 3), 1.0),
    ):
        envs, _, _ = game(seat, *replies)
        *before, (_, rewards, terminated, truncated, _) = played(envs, *moves)
        assert all(float(step[1][0]) == 0.0 and not step[2][0] for step in before)
        assert (float(rewards[0]), bool(terminated[0]), bool(truncated[0])) == (reward, True, False)
        (found,) = envs.finished()
        assert (found.opponent, found.result, found.end, found.seat) == (7, reward, "rules", int(seat == "second"))


def test_the_side_that_wins_is_paid_and_the_other_pays():
    check_signs()


def test_a_planted_sign_error_is_found(monkeypatch):
    monkeypatch.setattr(environment, "OTHER_SIDE", np.arange(len(OTHER_SIDE), dtype=np.int8))
    with pytest.raises(AssertionError):
        check_signs()


def test_each_side_sees_its_own_stones_first():
    envs, other, seen = game("first", 3, 3)
    assert not seen["observation"].any()
    (step,) = played(envs, 0)
    own, theirs = step[0]["observation"][0]
    assert (own.sum(), own[5, 0], theirs.sum(), theirs[5, 3]) == (1, 1, 1, 1)
    np.testing.assert_array_equal(other.seen[0][0][1], own)


def test_a_planted_perspective_error_is_found(monkeypatch):
    monkeypatch.setattr(GameEnvironments, "_own_turn", lambda self, which: np.zeros(len(which), np.bool_))
    with pytest.raises(AssertionError):
        test_each_side_sees_its_own_stones_first()


def test_the_step_after_an_end_only_begins_the_next_game_on_the_other_seat():
    envs, _, _ = game("alternate", 1, 1, 1, 5)
    last = played(envs, 0, 0, 0, 0)[-1]
    assert last[2][0]
    assert last[0]["observation"][0, 0, :, 0].sum() == 4
    ((seen, reward, terminated, _, _),) = played(envs, 2)
    assert (float(reward[0]), bool(terminated[0])) == (0.0, False)
    # The other side began the second game, with column 5.
    assert seen["observation"].sum() == 1
    assert seen["observation"][0, 1, 5, 5] == 1


def test_resigning_loses_and_the_record_says_how():
    envs, _, _ = game("first", RESIGNS)
    ((_, reward, terminated, _, _),) = played(envs, 0)
    assert (float(reward[0]), bool(terminated[0])) == (1.0, True)
    assert [(each.result, each.end) for each in envs.finished()] == [(1, "resignation")]


class Limited(ConnectFour):
    def play(self, which, moves):
        verdicts = super().play(which, moves)
        return np.where((verdicts == Verdict.GOES_ON) & (self._made[which] >= 4), Verdict.LIMIT, verdicts)

    def material(self, which):
        return np.where(self._made[which] % 2 == 0, 0.25, -0.25).astype(np.float32)


@pytest.mark.parametrize(
    ("at_limit", "reward", "terminated"), [("draw", 0.0, True), ("truncate", 0.0, False), ("material", 0.25, True)]
)
def test_the_limit_is_a_draw_a_truncation_or_adjudicated_and_never_a_win(at_limit, reward, terminated):
    envs = GameEnvironments(1, Limited, seat="first", at_limit=at_limit)
    envs.reset(seed=0)
    last = played(envs, 0, 1)[-1]
    assert (float(last[1][0]), bool(last[2][0]), bool(last[3][0])) == (reward, terminated, not terminated)
    assert [(each.result, each.end) for each in envs.finished()] == [(0, "limit")]


def test_shaping_is_paid_and_never_in_the_result():
    class Gaining(Limited):
        """The material of the side to move is the number of plies."""

        def material(self, which):
            return self._made[which].astype(np.float32)

    envs = GameEnvironments(1, Gaining, seat="first", shaping=0.5)
    envs.reset(seed=0)
    assert [float(step[1][0]) for step in played(envs, 0, 1)] == [1.0, 1.0]
    assert [(each.result, each.end) for each in envs.finished()] == [(0, "limit")]


def test_a_draw_by_the_rules_is_told_apart():
    rng = np.random.default_rng(0)
    envs = GameEnvironments(64, TicTacToe)
    seen, _ = envs.reset(seed=0)
    for _ in range(40):
        seen, _, _, truncated, _ = envs.step(drawn(seen["action_mask"], rng))
        assert not truncated.any()
    results = envs.finished()
    assert {(each.end, abs(each.result)) for each in results} == {("rules", 1), ("draw", 0)}
    assert {each.seat for each in results} == {0, 1}


def test_openings_vary_games_and_are_named_in_the_record():
    envs = GameEnvironments(32, ConnectFour, opening_plies=6, opening_share=0.5, seat="first")
    seen, _ = envs.reset(seed=3)
    stones = seen["observation"].sum(axis=(1, 2, 3))
    assert len(np.unique(stones)) > 3
    rng = np.random.default_rng(0)
    for _ in range(30):
        seen = envs.step(drawn(seen["action_mask"], rng))[0]
    openings = [each.opening for each in envs.finished()]
    assert 0 in openings
    assert max(openings) > 3


def test_a_finisher_wins_at_once_whatever_was_chosen():
    envs, _, _ = game("first", 1, 1, 1, finisher="learner")
    assert played(envs, 0, 0, 0, 6)[-1][1][0] == 1.0
    assert [(each.result, each.end) for each in envs.finished()] == [(1, "finisher")]
    envs, _, _ = game("first", 1, 1, 1, 6, finisher="opponent")
    assert played(envs, 0, 0, 2, 3)[-1][1][0] == -1.0
    assert [(each.result, each.end) for each in envs.finished()] == [(-1, "finisher")]


def test_a_chosen_win_is_not_counted_as_the_finishers():
    envs, _, _ = game("first", 1, 1, 1, finisher="both")
    assert played(envs, 0, 0, 0, 0)[-1][1][0] == 1.0
    assert [(each.result, each.end) for each in envs.finished()] == [(1, "rules")]


def test_a_game_keeps_its_version_and_whoever_meets_the_newest_meets_the_new_one():
    envs = GameEnvironments(1, ConnectFour, seat="first", most_opponents=1)
    old, new = Scripted(1, 1, 1), Scripted(2)
    envs.face([Opponent(3, old)])
    envs.reset(seed=0)
    envs.face([Opponent(4, new)])
    played(envs, 0, 0)
    assert len(old.seen) == 2
    # Only one version is held: the next game meets the old one until the new one fits.
    assert envs.seats.held == 1
    envs = GameEnvironments(1, ConnectFour, seat="first")
    first, second = Scripted(1), Scripted(2)
    envs.face([Opponent(NEWEST, first)])
    envs.reset(seed=0)
    played(envs, 0)
    envs.face([Opponent(NEWEST, second)])
    played(envs, 0)
    assert (len(first.seen), len(second.seen)) == (1, 1)


def test_the_same_seed_gives_the_same_games():
    def games():
        envs = GameEnvironments(8, ConnectFour, opening_plies=4)
        seen, _ = envs.reset(seed=5)
        rng, rows = np.random.default_rng(1), [seen["observation"]]
        for _ in range(20):
            seen, reward, *_ = envs.step(drawn(seen["action_mask"], rng))
            rows += [seen["observation"], reward]
        return rows

    for one, other in zip(games(), games(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"opponent": "nobody"}, "one_ply"), ({"shaping": -1}, "shaping"), ({"options": {"x": 1}}, "options")],
)
def test_an_impossible_setting_is_named(settings, named):
    with pytest.raises(InvalidInput, match=named):
        GameEnvironments(1, ConnectFour, **settings)


def test_a_match_counts_one_game_of_every_column_and_the_better_player_wins():
    class Random:
        def initial_state(self, count):
            return None

        def to_environment(self, action):
            return action

        def act(self, observation, rng, mask=None, state=None):
            return Choice(drawn(mask, rng), np.zeros(len(mask)))

        def greedy(self, observation, mask=None, state=None):
            raise NotImplementedError

    class Centre(Random):
        """Knows connect four's best first columns."""

        def act(self, observation, rng, mask=None, state=None):
            return Choice(np.where(mask[:, 3], 3, drawn(mask, rng)), np.zeros(len(mask)))

    environment = {"id": "games/connect_four"}
    games = play_match(Centre(), Random(), environment, 200, 0)
    assert len(games) == 200
    assert [each.seat for each in games].count(0) == 100
    assert sum(each.result for each in games) > 40
    again = play_match(Centre(), Random(), environment, 200, 0)
    assert games == again
    assert sum(each.result for each in play_match(Random(), Centre(), environment, 200, 0)) < -40
