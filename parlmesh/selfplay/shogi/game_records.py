"""Writes games for other programs as KIF, CSA and USI, and positions as SVG."""

from collections.abc import Sequence
from pathlib import Path

from rsshogi.core import Board
from rsshogi.record import Record

from parlmesh.errors import InvalidInput

from .games import START

FORMATS = (".kif", ".csa", ".usi", ".svg")


def write_game(path: Path, moves: Sequence[str], *, black: str, white: str) -> None:
    """Writes USI moves in the format of the file's suffix; .svg shows the last position."""
    if path.suffix not in FORMATS:
        raise InvalidInput(f"a game file must end in one of {', '.join(FORMATS)}, got {path.name!r}", reason="FORMAT")
    # KIF predates UTF-8, and programs that read it expect its own encoding.
    encoding = "cp932" if path.suffix == ".kif" else "utf-8"
    path.write_text(text_of(path.suffix, moves, black=black, white=white), encoding=encoding)


def text_of(suffix: str, moves: Sequence[str], *, black: str, white: str) -> str:
    """The file's text."""
    if suffix == ".usi":
        return " ".join(["position startpos", *(["moves", *moves] if moves else [])]) + "\n"
    if suffix == ".svg":
        board, last = Board(START), None
        for usi in moves:
            last = board.push_usi(usi)
        return str(board.to_svg(last))
    record = Record.from_dict(
        {
            "init_position_sfen": START,
            "moves": [{"move": usi} for usi in moves],
            "metadata": {"black_player": black, "white_player": white},
        }
    )
    return record.to_kif() if suffix == ".kif" else record.to_csa()
