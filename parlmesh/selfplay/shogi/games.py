"""Shogi, many games at once. rsshogi makes moves and finds the legal ones; boards and hands are mirrored in arrays, so
that the network's input is encoded for all games together."""

import copy
from typing import ClassVar, Self

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from ..games.game import Verdict
from .board_planes import PLANES, WHITE, planes_of
from .impasse import Rule, declared
from .move_numbers import HAND_TYPES, OURS, Form, move_table
from .repetition import Past

try:
    from rsshogi.core import Board, Move
except ImportError as error:
    raise ImportError("shogi needs rsshogi: pip install parlmesh[games]") from error

START = "lnsgkgsnl/1r5b1/ppppppppp/9/9/9/PPPPPPPPP/1B5R1/LNSGKGSNL b - 1"
_PROMOTED = 8
_DROP, _PROMOTES, _SQUARE = 1 << 14, 1 << 15, 127
# Value on the board by piece type, for greedy players and material.
WORTH_OF_TYPE: Array = np.array([0, 1, 3, 4, 5, 8, 10, 6, 0, 7, 6, 6, 6, 10, 12], np.float32)
_HAND_WORTH: Array = WORTH_OF_TYPE[list(HAND_TYPES)]
# All pieces but the kings.
_WHOLE = 2.0 * float((np.array([9, 2, 2, 2, 2, 1, 1]) * _HAND_WORTH).sum())
# Position in a hand by piece type; promoted pieces revert.
_HAND_PLACE: Array = np.full(16, -1)
for _place, _kind in enumerate(HAND_TYPES):
    _HAND_PLACE[_kind] = _HAND_PLACE[_kind + _PROMOTED if _kind != 7 else _kind] = _place
_SIGN: Array = np.where(np.arange(32) >= WHITE, -1.0, 1.0) * np.concatenate(
    (WORTH_OF_TYPE, np.zeros(1), WORTH_OF_TYPE, np.zeros(1))
)


class Shogi:
    """`form` is the numbering of moves, `max_plies` the move limit, and `impasse` the declaration rule, which applies
    automatically to the side that may declare. `sfen` is the initial position."""

    dtype: ClassVar[str] = "uint8"

    def __init__(
        self, count: int, form: Form = "spatial", max_plies: int = 320, impasse: Rule = "27", sfen: str = START
    ) -> None:
        for name, value, known in (("form", form, ("flat", "spatial")), ("impasse", impasse, ("none", "24", "27"))):
            if value not in known:
                raise InvalidInput(f"shogi's {name} must be one of {', '.join(known)}, got {value!r}", reason="GAME")
        if not 1 <= max_plies <= 10_000:
            raise InvalidInput(f"shogi's max_plies must lie in 1..10000, got {max_plies}", reason="GAME")
        self.count = count
        self.shape = (PLANES, 9, 9)
        self._table = move_table(form)
        self.choices = self._table.choices
        self._limit = max_plies
        self._impasse = impasse
        self._sfen = sfen
        self.boards = [Board(sfen) for _ in range(count)]
        self._legal: list[list[Move]] = [board.legal_moves() for board in self.boards]
        first = self.boards[0]
        self._first_position = int(first.zobrist_hash())
        self._past = [Past(self._first_position) for _ in range(count)]
        self._first_cells, self._first_hands = cells_of(first), hands_of(first)
        self._first_colour = int(first.turn)
        self._cells = np.repeat(self._first_cells[None], count, axis=0)
        self._hands = np.repeat(self._first_hands[None], count, axis=0)
        self._made = np.zeros(count, np.int64)
        self._over = np.zeros(count, np.bool_)

    def start(self, which: Array, rng: np.random.Generator) -> None:
        """Sets up the initial position."""
        for index in which.tolist():
            board = self.boards[index] = Board(self._sfen)
            self._legal[index] = board.legal_moves()
            self._past[index] = Past(self._first_position)
        self._cells[which], self._hands[which] = self._first_cells, self._first_hands
        self._made[which] = 0
        self._over[which] = False

    def planes(self, which: Array, *, waiting: bool = False) -> Array:
        """As in `board_planes`."""
        colours = self.colours(which)
        colours = 1 - colours if waiting else colours
        return planes_of(self._cells[which], self._hands[which], colours, self._made[which], self._limit)

    def legal(self, which: Array) -> Array:
        """Legal moves by number."""
        found = np.zeros((len(which), self.choices), np.bool_)
        rows, _, numbers = self._numbered(which)
        found[rows, numbers] = True
        return found

    def play(self, which: Array, moves: Array) -> Array:
        """Makes moves and detects ends: no legal move, repetition, perpetual check, impasse, the limit."""
        colours = self.colours(which)
        codes = self._table.move[colours, moves]
        verdicts = np.zeros(len(which), np.int8)
        checked = np.zeros(len(which), np.bool_)
        for row, (index, code) in enumerate(zip(which.tolist(), codes.tolist(), strict=True)):
            board = self.boards[index]
            board.push_move(Move(code))
            legal = self._legal[index] = board.legal_moves()
            if not legal:
                verdicts[row] = Verdict.WON
                continue
            checked[row] = check = board.is_in_check()
            verdicts[row] = self._past[index].add(board.zobrist_hash(), check=check)
        self._mirror(which, codes, colours)
        self._made[which] += 1
        open_rows = verdicts == Verdict.GOES_ON
        if self._impasse != "none":
            wins, draws = declared(self._impasse, self._cells[which], self._hands[which], 1 - colours)
            # The side to move now may declare.
            verdicts[open_rows & wins & ~checked] = Verdict.LOST
            verdicts[open_rows & draws & ~checked] = Verdict.DRAWN
        late = (verdicts == Verdict.GOES_ON) & (self._made[which] >= self._limit)
        verdicts[late] = Verdict.LIMIT
        over = verdicts != Verdict.GOES_ON
        self._over[which] = over
        for index in which[over].tolist():
            self._legal[index] = []
        return verdicts

    def material(self, which: Array) -> Array:
        """The balance by the usual piece values, including pieces in hand."""
        black = _SIGN[self._cells[which]].sum(axis=1)
        hands = self._hands[which].astype(np.float32) @ _HAND_WORTH
        black = black + hands[:, 0] - hands[:, 1]
        sign = np.where(self.colours(which) == 0, 1.0, -1.0)
        found: Array = (sign * black / _WHOLE).astype(np.float32)
        return found

    def plies(self, which: Array) -> Array:
        """Moves since the start of the game."""
        return self._made[which]

    def room(self, count: int) -> Self:
        """Boards are only created by copying."""
        found = copy.copy(self)
        found.count = count
        found.boards = self.boards[:1] * count
        found._legal, found._past = [[]] * count, self._past[:1] * count
        found._cells, found._hands = np.zeros((count, 81), np.uint8), np.zeros((count, 2, 7), np.uint8)
        found._made, found._over = np.zeros(count, np.int64), np.zeros(count, np.bool_)
        return found

    def copy_from(self, which: Array, source: Self, rows: Array) -> None:
        """Copies games together with their history, which repetitions need."""
        for index, row in zip(which.tolist(), rows.tolist(), strict=True):
            self.boards[index] = source.boards[row].copy()
            self._legal[index] = source._legal[row]
            self._past[index] = source._past[row].copy()
        for name in ("_cells", "_hands", "_made", "_over"):
            getattr(self, name)[which] = getattr(source, name)[rows]

    def winning(self, which: Array) -> Array:
        """Mating moves, found by trying every legal move."""
        found = np.zeros((len(which), self.choices), np.bool_)
        for row, (index, colour) in enumerate(zip(which.tolist(), self.colours(which).tolist(), strict=True)):
            board = self.boards[index]
            for move in self._legal[index]:
                board.push_move(move)
                if board.is_mated():
                    found[row, self._table.number[colour, int(move)]] = True
                board.pop()
        return found

    def captured(self, which: Array) -> Array:
        """Value of the piece that each legal move captures [N, choices]."""
        found = np.zeros((len(which), self.choices), np.float32)
        rows, codes, numbers = self._numbered(which)
        taken = self._cells[which[rows], OURS[codes & _SQUARE]] % WHITE
        found[rows, numbers] = np.where(codes & _DROP, 0.0, WORTH_OF_TYPE[np.minimum(taken, 14)])
        return found

    def arrays(self, which: Array) -> tuple[Array, Array]:
        """Boards [N, 81] and hands [N, 2, 7], as `planes_of` takes them."""
        return self._cells[which], self._hands[which]

    def number(self, game: int, move: Move) -> int:
        """Our number of an rsshogi move; −1 for an impossible one."""
        return int(self._table.number[self.colours(np.array([game]))[0], int(move)])

    def usi(self, game: int, number: int) -> str:
        """A move's USI name."""
        return str(Move(int(self._table.move[self.colours(np.array([game]))[0], number])).to_usi())

    def colours(self, which: Array) -> Array:
        """The side to move [N]: 0 black, 1 white."""
        found: Array = (self._made[which] + self._first_colour) % 2
        return found

    def _numbered(self, which: Array) -> tuple[Array, Array, Array]:
        """For all legal moves: the row in `which`, rsshogi's code, and our number."""
        lists = [self._legal[index] for index in which.tolist()]
        counts = np.fromiter(map(len, lists), np.int64, len(lists))
        codes = np.fromiter((int(move) for moves in lists for move in moves), np.int64, int(counts.sum()))
        rows = np.repeat(np.arange(len(which)), counts)
        return rows, codes, self._table.number[self.colours(which)[rows], codes]

    def _mirror(self, which: Array, codes: Array, colours: Array) -> None:
        """Applies the moves to the arrays."""
        target = OURS[codes & _SQUARE]
        drops = (codes & _DROP) != 0
        board, dropping = np.flatnonzero(~drops), np.flatnonzero(drops)
        if len(board):
            games, colour = which[board], colours[board]
            origin = OURS[(codes[board] >> 7) & _SQUARE]
            piece = self._cells[games, origin]
            taken = self._cells[games, target[board]] % WHITE
            took = taken > 0
            # A king is never captured.
            np.add.at(self._hands, (games[took], colour[took], _HAND_PLACE[taken[took]]), 1)
            self._cells[games, origin] = 0
            promotes = (codes[board] & _PROMOTES) != 0
            self._cells[games, target[board]] = piece + np.where(promotes, _PROMOTED, 0).astype(np.uint8)
        if len(dropping):
            games, colour = which[dropping], colours[dropping]
            kind = (codes[dropping] >> 7) & _SQUARE
            np.subtract.at(self._hands, (games, colour, _HAND_PLACE[kind]), 1)
            self._cells[games, target[dropping]] = kind + WHITE * colour


def cells_of(board: Board) -> Array:
    """A board from black's view, uint8 [81]: piece types, plus 16 for white's."""
    state = board.to_position_state()
    found = np.zeros(81, np.uint8)
    found[OURS] = [int(piece) for piece in state.board]
    return found


def hands_of(board: Board) -> Array:
    """Pieces in hand, uint8 [2, 7], in the order P L N S G B R."""
    from rsshogi.types import Color

    counts = [board.hand_counts(colour) for colour in (Color.BLACK, Color.WHITE)]
    return np.array([[each[name] for name in "PLNSGBR"] for each in counts], np.uint8)
