"""Makes the next model from the updates of a round, block by block: rule, privacy, server optimiser."""

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import safetensors.numpy

from parlmesh.durable_files import PRIVATE, replace_file
from parlmesh.errors import InvalidInput
from parlmesh.federation import aggregators
from parlmesh.federation.aggregators import Combination
from parlmesh.federation.config import FederationConfig, RuleConfig
from parlmesh.federation.privacy import mean_noise_deviation, noise_stream
from parlmesh.federation.server_optimisers import ServerOptimiser, server_optimiser
from parlmesh.federation.update_blocks import Updates, block_columns
from parlmesh.telemetry import get_logger
from parlmesh.types import Array

from ..model_versions import ModelFiles, StoredModel
from ..noise_key import NOISE_KEY, NoiseKey
from ..rules.nodes.voters import votes_of
from ..rules.records import Counted
from .update_spool import Spool, SpooledUpdates

if TYPE_CHECKING:
    from ..masking.unmasking import Unmasking

log = get_logger("parlmesh.learner")

# Norms are computed in float32; a clipped update must be short enough all the same.
_CLIP_MARGIN = 1.0 - 1e-3


@dataclass(frozen=True, slots=True)
class Joined:
    """A version that was just made."""

    model: StoredModel
    metrics: dict[str, float]


class Aggregator:
    """Makes versions of one federation. Used in one thread at a time."""

    def __init__(self, config: FederationConfig, models: ModelFiles, spool: Spool, folder: Path) -> None:
        self._config = config
        self._size = models.size
        self._models = models
        self._spool = spool
        self._folder = folder
        self._noise_key = NoiseKey(folder / NOISE_KEY)
        server = config.server
        self._server: ServerOptimiser = server_optimiser(
            server.optimiser,
            learning_rate=server.learning_rate,
            momentum=server.momentum,
            beta2=server.beta2,
            tau=server.tau,
        )

    def aggregate(self, base: int, round_number: int, counted: Sequence[Counted]) -> "Joined":
        """Writes version base + 1 and returns it with its metrics; the same updates give the same bytes."""
        ordered = _ordered(counted)
        updates: Updates = SpooledUpdates(self._spool, [update.slot for update in ordered])
        if self._config.rule.by_votes:
            updates = votes_of(updates, ordered)
        combination = combination_for(self._config, updates, ordered)
        return self._write(base, len(ordered), combined(updates, combination))

    def aggregate_masked(self, base: int, counted: Sequence[Counted], unmasking: "Unmasking") -> "Joined":
        """Like `aggregate`, from the sum of a secure round; InvalidInput when it cannot be unmasked."""
        from ..masking.unmasking import UnmaskedSum

        ordered = _ordered(counted)
        total = UnmaskedSum(unmasking, self._spool, [update.slot for update in ordered])
        joined = self._write(base, len(ordered), total.blocks(self._size))
        shown = {"secure/error": total.error, "secure/dropped_nodes": float(len(unmasking.dropped))}
        if self._config.privacy.mode == "none":
            shown["secure/weight"] = float(total.weight)
        return Joined(joined.model, {**joined.metrics, **shown})

    def _write(self, base: int, count: int, blocks: Iterable[tuple[int, int, Array]]) -> "Joined":
        """Writes version base + 1 from the joint update of `count` nodes, block by block."""
        moments = self._moments(base)
        squares: list[float] = []
        reader = self._models.reader(base)
        noise = self._noise(base, count)

        def parts() -> Iterator[memoryview]:
            for start, stop, joint in blocks:
                if noise is not None:
                    joint = joint + noise.draw(stop - start)
                piece = {name: moment[start:stop] for name, moment in moments.items()}
                step = self._server.step(joint, piece)
                squares.append(float(np.dot(step, step)))
                yield (reader.read(start, stop) + step).astype("<f4").view(np.uint8).data

        try:
            model = self._models.derive(base, parts)
        finally:
            reader.close()
        if moments:
            self._keep_moments(base + 1, moments)
        return Joined(model, {"update/norm": math.sqrt(sum(squares)), "update/nodes": float(count)})

    def forget_noise(self, base: int) -> None:
        """Called once the version made from `base` is recorded."""
        if self._config.privacy.mode == "central":
            self._noise_key.forget(base)

    def _noise(self, base: int, count: int) -> "_Noise | None":
        privacy = self._config.privacy
        if privacy.mode != "central":
            return None
        deviation = mean_noise_deviation(privacy.noise_multiplier, privacy.clip_norm, count)
        return _Noise(noise_stream(self._noise_key.seed(base)), deviation)

    def _moments(self, base: int) -> dict[str, Array]:
        """The moments that belong to the base, so that a repeated round starts from the same ones."""
        path = self._moment_path(base)
        if not self._server.moments:
            return {}
        try:
            return self._checked(
                {name: np.array(one) for name, one in safetensors.numpy.load(path.read_bytes()).items()}
            )
        except (OSError, safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
            if base > 1:
                log.error(
                    "moments_lost", path=str(path), error=repr(error), advice="the server's optimiser starts over"
                )
            return self._server.initial(self._size)

    def _checked(self, moments: dict[str, Array]) -> dict[str, Array]:
        """Raises ValueError unless the moments are this optimiser's, for a model of this size."""
        wanted = self._server.initial(self._size)
        if {name: (one.shape, one.dtype) for name, one in moments.items()} != {
            name: (one.shape, one.dtype) for name, one in wanted.items()
        }:
            raise ValueError(f"they must be {', '.join(wanted)}, {self._size} numbers each")
        if not all(np.isfinite(one).all() for one in moments.values()):
            raise ValueError("a number is not finite")
        return moments

    def _keep_moments(self, version: int, moments: dict[str, Array]) -> None:
        replace_file(self._moment_path(version), safetensors.numpy.save(moments), mode=PRIVATE)
        for old in sorted(self._folder.glob("moments-v*.safetensors"))[:-2]:
            old.unlink()

    def _moment_path(self, version: int) -> Path:
        return self._folder / f"moments-v{version:08d}.safetensors"


def _ordered(counted: Sequence[Counted]) -> list[Counted]:
    return sorted(counted, key=lambda update: (update.node_id, update.slot))


def combined(updates: Updates, combination: Combination) -> Iterator[tuple[int, int, Array]]:
    """Yields (start, stop, joint update) over all columns in order; the next block is read while one is written."""

    def combine(start: int, stop: int) -> tuple[int, int, Array]:
        return start, stop, combination(updates.block(start, stop))

    with ThreadPoolExecutor(1) as reading:
        following: Future[tuple[int, int, Array]] | None = None
        for columns in block_columns(updates):
            present, following = following, reading.submit(combine, *columns)
            if present is not None:
                yield present.result()
        if following is not None:
            yield following.result()


class _Noise:
    """Gaussian noise, drawn in the order of the blocks."""

    def __init__(self, stream: np.random.Generator, deviation: float) -> None:
        self._stream = stream
        self._deviation = deviation

    def draw(self, size: int) -> Array:
        """The next numbers."""
        return self._deviation * self._stream.standard_normal(size)


def combination_for(config: FederationConfig, updates: Updates, counted: Sequence[Counted]) -> Combination:
    """The rule of a federation for one round's updates."""
    weights, norms = [update.weight for update in counted], [update.norm for update in counted]
    rule = config.rule
    if config.privacy.mode == "central":
        return aggregators.clipped_mean(weights, norms, config.privacy.clip_norm * _CLIP_MARGIN)
    match rule.name:
        case "mean":
            return aggregators.scaled_mean(weights, [update.scale for update in counted])
        case "clipped_mean":
            return aggregators.clipped_mean(weights, norms, rule.clip_norm)
    return _by_votes(rule, updates)


def _by_votes(rule: RuleConfig, updates: Updates) -> Combination:
    """Rules in which every voter counts the same, whatever its weight: malicious nodes need half of the votes."""
    match rule.name:
        case "median":
            return aggregators.median()
        case "trimmed_mean":
            return aggregators.trimmed_mean(updates.count, rule.liars)
        case "krum":
            return aggregators.krum(updates, rule.liars)
        case "multi_krum":
            return aggregators.krum(updates, rule.liars, rule.chosen or updates.count - rule.liars)
        case "geometric_median":
            return aggregators.geometric_median(updates, [1.0] * updates.count)
        case _:
            raise InvalidInput(f"rule {rule.name} has no votes")
