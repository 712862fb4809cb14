"""The past versions of a run that are opponents in its games: on disk before any game uses them, and served while they
are opponents. `opponent_pool` decides which versions are."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parlmesh.algorithms.ratings import Rating, ratings, score_bounds
from parlmesh.durable_files import remove, replace_file
from parlmesh.environments.two_players import NEWEST
from parlmesh.errors import InvalidInput
from parlmesh.policies.policy_file import unpack_policy
from parlmesh.telemetry import get_logger
from parlmesh.training.settings.opponents import OpponentsConfig

from .. import metrics
from .opponent_pool import OpponentPool, Share
from .registry import PolicyRegistry

_RECORDS, _MATCHES = "records.json", "matches.json"
_MOST_MATCHES = 1_000
# No rollout ends more games than this.
_MOST_GAMES = 1_000_000
log = get_logger("parlmesh.learner")


class League:
    """The opponents of one run. Used on the event loop; `save` is called in the training thread."""

    def __init__(self, config: OpponentsConfig, registry: PolicyRegistry, folder: Path, seed: int) -> None:
        self._registry = registry
        self._folder = folder
        self._scripted = config.scripted
        self.pool = OpponentPool(config, np.random.default_rng([seed, 16]))
        self._games = [0, 0, 0]
        self._match_games, self._gate = config.match_games, config.gate
        self._matches: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.promoted = 0

    def recall(self) -> None:
        """Restores the opponents of an earlier start; a version whose file is damaged or missing is no longer an
        opponent."""
        self._recall_matches()
        try:
            state = json.loads((self._folder / _RECORDS).read_bytes())
            policies = {version: self._intact(int(version)) for version in state}
            self.pool.restore({version: counts for version, counts in state.items() if policies[version]})
        except FileNotFoundError:
            return
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, OSError) as error:
            log.error("opponents_damaged", path=str(self._folder), error=repr(error), advice="the pool starts over")
            self.pool.restore({})
            return
        for version in self.pool.versions:
            self._registry.recall(version, policies[str(version)])

    def _intact(self, version: int) -> bytes:
        """The version's policy; empty when its file is damaged or gone, since every game against it would fail."""
        try:
            data = self._file(version).read_bytes()
            unpack_policy(data)
        except FileNotFoundError:
            return b""
        except (InvalidInput, OSError) as error:
            log.error("opponent_damaged", version=version, error=str(error), advice="it is no longer an opponent")
            return b""
        return data

    def _recall_matches(self) -> None:
        try:
            found = json.loads((self._folder / _MATCHES).read_bytes())
            self._matches = {
                (int(one), int(other)): (int(won), int(drawn), int(lost)) for one, other, won, drawn, lost in found
            }
        except FileNotFoundError:
            return
        except (ValueError, TypeError, OverflowError, RecursionError, OSError) as error:
            log.error("matches_damaged", path=str(self._folder), error=repr(error), advice="ratings start over")

    def due(self, version: int) -> bool:
        """Whether this version becomes an opponent."""
        return not self._scripted and self.pool.due(version)

    def save(self, version: int, data: bytes) -> None:
        """Returns when the version is on disk."""
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._file(version), data)
        state = {**self.pool.state(), str(version): [0, 0, 0]}
        replace_file(self._folder / _RECORDS, json.dumps(state).encode())

    def enter(self, version: int) -> None:
        """Makes a version an opponent from now on."""
        self._registry.keep(version)
        for gone in self.pool.add(version):
            if gone != self.promoted:
                self._registry.release(gone)
            remove(self._file(gone))
        log.info("opponent_entered", version=version, opponents=len(self.pool.versions))

    def asked(self) -> list[Share]:
        """Opponents of the next rollout; none = those its environment names."""
        return [] if self._scripted else self.pool.choose()

    def take(self, told: Mapping[str, Any]) -> None:
        """Takes the results of a rollout. Actors are not trusted: impossible results are counted and left out."""
        if not self._are_ours(told.get("opponents")):
            metrics.GAMES_REFUSED.inc()
            return
        games = told.get("games")
        for version, counts in games.items() if isinstance(games, Mapping) else ():
            if not _are_counts(version, counts):
                metrics.GAMES_REFUSED.inc()
                continue
            won, drawn, lost = (int(count) for count in counts)
            known = int(version) == NEWEST or self.pool.record(int(version), won, drawn, lost)
            if not known:
                metrics.GAMES_REFUSED.inc()
                continue
            for result, count in zip(("won", "drawn", "lost"), (won, drawn, lost), strict=True):
                metrics.GAMES.labels("newest" if int(version) == NEWEST else "past", result).inc(count)
            if int(version) != NEWEST:
                self._games = [before + count for before, count in zip(self._games, (won, drawn, lost), strict=True)]

    def _are_ours(self, digests: Any) -> bool:
        """Whether the opponents met were versions of this run, if it still has them."""
        for version, digest in digests.items() if isinstance(digests, Mapping) else ():
            found = self._registry.find(int(version)) if str(version).isdigit() and len(version) < 16 else None
            if found is not None and found.blob.digest.hex() != digest:
                log.error("opponent_differs", version=version, digest=str(digest)[:64])
                return False
        return True

    def references(self, version: int) -> list[int]:
        """Opponents to match an evaluated version with: the first, the newest, and the promoted model."""
        if not self._match_games:
            return []
        wanted = [*self.pool.versions[:1], *self.pool.versions[-1:], *([self.promoted] if self.promoted else [])]
        return [each for each in dict.fromkeys(wanted) if each != version and self._registry.find(each) is not None]

    def rate(self, version: int, opponent: int, won: int, drawn: int, lost: int) -> None:
        """Takes in a match; the oldest ones are forgotten."""
        self._matches[version, opponent] = (won, drawn, lost)
        while len(self._matches) > _MOST_MATCHES:
            del self._matches[next(iter(self._matches))]

    def save_matches(self) -> None:
        """Returns when all matches are on disk, so that ratings survive a restart."""
        self._folder.mkdir(parents=True, exist_ok=True)
        found = [[*pair, *counts] for pair, counts in list(self._matches.items())]
        replace_file(self._folder / _MATCHES, json.dumps(found).encode())

    def rating(self, version: int) -> Rating | None:
        """Elo above the oldest version that was matched; None when this one was not matched."""
        return ratings(self._matches).get(version)

    def passes(self, version: int) -> bool:
        """Whether to promote an evaluated version: the first one, or one that surely beats the promoted one."""
        if not self._gate:
            return False
        found = self._matches.get((version, self.promoted))
        return not self.promoted or (found is not None and score_bounds(*found)[0] > 0.5)

    def promote(self, version: int, data: bytes) -> None:
        """Makes this the model to beat; it is served until another takes its place."""
        if self.promoted and self.promoted not in self.pool.versions:
            self._registry.release(self.promoted)
        self._registry.recall(version, data)
        self.promoted = version

    def curves(self) -> dict[str, float]:
        """Results of the games against past versions since the last call."""
        (won, drawn, lost), self._games = self._games, [0, 0, 0]
        count = won + drawn + lost
        found = {"selfplay/opponents": float(len(self.pool.versions))}
        if count:
            found |= {"selfplay/score": (won + 0.5 * drawn) / count, "selfplay/drawn": drawn / count}
        return found

    def _file(self, version: int) -> Path:
        return self._folder / f"v{version:08d}.safetensors"


def _are_counts(version: Any, counts: Any) -> bool:
    if not isinstance(version, str) or not version.isascii() or not version.isdigit() or len(version) > 15:
        return False
    if not isinstance(counts, list) or len(counts) != 3:
        return False
    return all(isinstance(count, int | float) and 0 <= count <= _MOST_GAMES and count == int(count) for count in counts)
