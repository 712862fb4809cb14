"""One game in the terminal, with people, policies or random players on either side."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, TextIO

import numpy as np

from parlmesh.errors import InvalidInput, NotFound
from parlmesh.plugins import load_plugins
from parlmesh.policies import Policy, load_policy

from .board_text import ONE, Notation, notation_of
from .games import Games, Verdict
from .opponent_seats import RESIGNS
from .registration import GAMES
from .scripted_players import drawn
from .search import chooser_of


class Sitter(Protocol):
    """Chooses the moves of one side."""

    name: str

    def choose(self, games: Games, notation: Notation) -> int:
        """A legal move, or RESIGNS."""


class Person:
    """Reads moves from lines; `resign`, `quit` and the end of the input resign."""

    name = "you"

    def __init__(self, lines: TextIO) -> None:
        self._lines = lines

    def choose(self, games: Games, notation: Notation) -> int:
        """Asks until a move is legal."""
        for line in self._lines:
            text = line.strip()
            if text in ("resign", "quit"):
                return RESIGNS
            move = notation.read(games, text)
            if move >= 0 and games.legal(ONE)[0, move]:
                return move
            print(f"{text!r} is not legal here; {notation.help}, or resign")
        return RESIGNS


class PolicySitter:
    """Plays a policy's most likely move, or with simulations the best found by search."""

    def __init__(self, policy: Policy, name: str, simulations: int = 0) -> None:
        self._choose, self.name = chooser_of(policy, simulations), name

    def choose(self, games: Games, notation: Notation) -> int:
        """From one evaluation of the board, or from one per simulation."""
        return self._choose(games)


class RandomSitter:
    """Plays random legal moves."""

    name = "random"

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def choose(self, games: Games, notation: Notation) -> int:
        """A uniformly random legal move."""
        return int(drawn(games.legal(ONE), self._rng)[0])


def policy_from(path: Path, plugins: Sequence[str]) -> Policy:
    """The policy in a file, or the promoted model in a run's folder. Always loads the plug-in selfplay for its
    networks."""
    load_plugins(["selfplay", *plugins])
    if path.is_dir():
        path = _promoted(path)
    if not path.is_file():
        raise NotFound(f"there is no file {path}: a run writes policy.safetensors, `parlmesh models export` any model")
    return load_policy(path.read_bytes())


def _promoted(run: Path) -> Path:
    """The promoted model's file or, if none is promoted, the run's final policy."""
    try:
        version = int(json.loads((run / "models" / "promoted.json").read_bytes())["version"])
    except FileNotFoundError:
        return run / "policy.safetensors"
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"{run / 'models' / 'promoted.json'} cannot be read: {error!r}", reason="MODEL") from error
    return run / "models" / f"v{version:08d}.safetensors"


def player_from(path: Path | None, plugins: Sequence[str], seed: int, simulations: int = 0) -> Sitter:
    """A policy player, or a random one without a file."""
    return RandomSitter(seed) if path is None else PolicySitter(policy_from(path, plugins), path.stem, simulations)


def _does(name: str, verb: str) -> str:
    return f"{name} {verb}" if name == Person.name else f"{name} {verb}s"


class Sitting:
    """One game between two sitters; `moves` holds the moves by name."""

    def __init__(self, game: str, sitters: Sequence[Sitter], *, seed: int) -> None:
        self._notation = notation_of(game)
        self._sitters = sitters
        self.games = GAMES[game](1)
        self.games.start(ONE, np.random.default_rng(seed))
        self.moves: list[str] = []
        self.winner: str | None = None

    def play(self) -> Iterator[str]:
        """The texts to show, move by move, to the end."""
        verdict, side = Verdict.GOES_ON, 0
        yield self._notation.show(self.games)
        while verdict == Verdict.GOES_ON:
            side = int(self.games.plies(ONE)[0]) % 2
            sitter = self._sitters[side]
            yield f"{sitter.name} to move: {self._notation.help}" if isinstance(sitter, Person) else f"{sitter.name}:"
            move = sitter.choose(self.games, self._notation)
            if move == RESIGNS:
                self.winner = self._sitters[1 - side].name
                yield f"{_does(sitter.name, 'resign')}; {_does(self.winner, 'win')}"
                return
            self.moves.append(self._notation.write(self.games, move))
            verdict = Verdict(int(self.games.play(ONE, np.array([move]))[0]))
            yield f"{self.moves[-1]}\n{self._notation.show(self.games)}"
        if verdict in (Verdict.WON, Verdict.LOST):
            self.winner = self._sitters[side if verdict == Verdict.WON else 1 - side].name
        ends = {Verdict.DRAWN: "a draw", Verdict.LIMIT: "the move limit: neither side wins"}
        yield ends.get(verdict) or f"{_does(str(self.winner), 'win')} after {len(self.moves)} moves"

    def write(self, path: Path) -> None:
        """Writes a game of shogi in the format of the file's suffix."""
        if not self.moves:
            raise InvalidInput("there are no moves to write", reason="FORMAT")
        from .shogi.game_records import write_game

        black, white = (sitter.name for sitter in self._sitters)
        write_game(path, self.moves, black=black, white=white)
