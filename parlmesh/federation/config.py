"""Settings of a federation; the string under a field is its help text. Impossible combinations are refused here."""

import math
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from parlmesh.config import Config
from parlmesh.errors import InvalidInput

from .aggregators import check_krum, check_trim
from .privacy import check_budget
from .secure.fixed_point import LARGEST_WEIGHT, LEAST_NOISE_MULTIPLIER

_FEWEST_SUMMED = 3
# Checks that look at a single update; off by default in a secure federation.
_SINGLE_UPDATE_CHECKS = ("outlier_factor", "clip_factor", "weight_cap_factor")


class SelectionConfig(Config):
    """Which nodes take part in a round."""

    min_nodes: int = Field(default=1, ge=1, le=100_000)
    """Connected nodes that a round needs to start."""
    fraction: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of the connected nodes whose updates a round needs, chosen at random."""
    over_selection: float = Field(default=1.0, ge=1.0, le=10.0)
    """Factor by which more nodes are asked than needed; the round closes once enough have answered."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Only nodes with all of these labels."""
    nodes: tuple[str, ...] = Field(default=(), max_length=100_000)
    """Only these nodes; none = all."""
    virtual_nodes: int = Field(default=0, ge=0, le=100_000)
    """Most virtual nodes per actor; an actor that claims more is excluded. 0 = no virtual nodes, as in production."""
    virtual_voters: bool | tuple[str, ...] = False
    """Whether each virtual node has its own vote: true if all hosts are yours, as in a simulation, or a list of hosts
    that you vouch for. Otherwise a host has one vote."""

    def wanted(self, nodes: int) -> int:
        """Number of updates that close a round of this many connected nodes."""
        return max(1, math.ceil(self.fraction * nodes - 1e-9))


class RuleConfig(Config):
    """How updates are aggregated."""

    name: Literal["mean", "clipped_mean", "median", "trimmed_mean", "krum", "multi_krum", "geometric_median"] = "mean"
    """mean is FedAvg's; the others are robust against lying nodes."""
    liars: int = Field(default=1, ge=0, le=10_000)
    """Lying nodes that krum, multi_krum and trimmed_mean must tolerate."""
    chosen: int = Field(default=0, ge=0, le=100_000)
    """Updates that multi_krum averages; 0 = all but the liars."""
    clip_norm: float = Field(default=0.0, ge=0.0)
    """Largest update norm for clipped_mean; 0 = the round's median (of two, the smaller)."""

    @property
    def by_votes(self) -> bool:
        """Whether every voter counts the same; otherwise updates are weighted by samples."""
        return self.name not in ("mean", "clipped_mean")

    @property
    def fewest_voters(self) -> int:
        """Fewest votes that the rule needs."""
        match self.name:
            case "krum":
                return 2 * self.liars + 3
            case "multi_krum":
                return max(2 * self.liars + 3, self.chosen + self.liars)
            case "trimmed_mean":
                return 2 * self.liars + 1
            case _:
                return 1


class ServerConfig(Config):
    """How the server applies the aggregated update."""

    optimiser: Literal["fedavg", "fedavgm", "nesterov", "fedadam", "fedyogi"] = "fedavg"
    """fedavg takes a plain step; the others use moments. nesterov is DiLoCo's."""
    learning_rate: float = Field(default=1.0, ge=0.0, le=100.0)
    """Factor on the aggregated update."""
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Decay of the first moment (beta 1)."""
    beta2: float = Field(default=0.99, ge=0.0, lt=1.0)
    """Decay of the second moment (beta 2)."""
    tau: float = Field(default=1e-3, gt=0.0)
    """Added to the root of the second moment."""


class GateConfig(Config):
    """Checks that an update must pass. Identity, round, nonce, schema and size are always checked."""

    finite: bool = True
    """Refuse updates with values that are not finite. Disable only for experiments."""
    max_norm: float = Field(default=0.0, ge=0.0)
    """Largest accepted update norm; 0 = any."""
    outlier_factor: float = Field(default=5.0, ge=0.0)
    """With three or more updates, those whose norm exceeds this multiple of the median are excluded; 0 = none."""
    clip_factor: float = Field(default=2.0, ge=0.0)
    """The rule mean clips norms to this multiple of the round's median (of two, the smaller); 0 = never."""
    max_samples: int = Field(default=0, ge=0)
    """Most samples that a node is credited with; 0 = no limit."""
    weight_cap_factor: float = Field(default=2.0, ge=0.0)
    """A node's weight is capped at this multiple of the median (of two, the smaller); 0 = no cap."""
    max_strikes: int = Field(default=3, ge=0, le=1_000)
    """Consecutive bad answers after which a node is excluded for 20 rounds, if there are enough others; 0 = never."""


class PrivacyConfig(Config):
    """Differential privacy for nodes."""

    mode: Literal["none", "central", "local", "distributed"] = "none"
    """central: the learner clips updates and adds noise to the mean. local: every node clips and adds noise itself.
    distributed: every node clips and adds part of the noise; a secure sum reveals only the total."""
    clip_norm: float = Field(default=1.0, ge=1e-9)
    """Largest update norm; longer updates are scaled down to it."""
    noise_multiplier: float = Field(default=1.0, gt=0.0, le=1_000.0)
    """Standard deviation of the noise in units of clip_norm."""
    delta: float = Field(default=1e-5, gt=0.0, lt=1.0)
    """Probability that the guarantee does not hold."""
    epsilon_budget: float = Field(default=0.0, ge=0.0)
    """The federation ends before its epsilon exceeds this; 0 = no budget."""
    uncounted_nodes: int = Field(default=1, ge=0, le=199)
    """Nodes of a distributed round whose noise does not count, because they may know, reveal or omit it. A node that
    gets the model knows its own noise."""

    @model_validator(mode="after")
    def _fine_enough(self) -> Self:
        if self.mode == "distributed" and self.noise_multiplier < LEAST_NOISE_MULTIPLIER:
            raise ValueError(
                f"noise_multiplier of distributed noise must be >= {LEAST_NOISE_MULTIPLIER:g},"
                f" got {self.noise_multiplier:g}"
            )
        return self


class SecureConfig(Config):
    """Secure aggregation: the learner gets the sum of a round's updates, and no single one."""

    enabled: bool = False
    """Nodes mask their updates, so that only the sum can be unmasked. Needs three nodes and the rule mean."""
    threshold: float = Field(default=0.6, gt=0.5, le=1.0)
    """Share of a round's nodes that must remain to the end; with fewer, the round is abandoned."""
    largest_value: float = Field(default=4.0, gt=0.0, le=1e6)
    """Largest absolute value in an update; a smaller limit gives finer fixed-point values."""
    step_seconds: float = Field(default=10.0, gt=0.0, le=3_600.0)
    """Longest wait for each step: the nodes' keys, their shares, and the unmasking."""

    def staying(self, nodes: int) -> int:
        """Nodes that must remain to the end: more than half, so that no party gets both kinds of shares of one node."""
        return max(nodes // 2 + 1, math.ceil(self.threshold * nodes - 1e-9))


class CompressionConfig(Config):
    """How updates are compressed."""

    encoding: Literal["none", "int8", "top_k"] = "none"
    """none is float32; the others carry their error over to the next round."""
    ratio: float = Field(default=0.01, gt=0.0, le=1.0)
    """Share of the values that top_k sends."""


class EvaluationConfig(Config):
    """How models are evaluated: by nodes, on their own held-out data."""

    interval_rounds: int = Field(default=1, ge=0, le=100_000)
    """Rounds between evaluations; the last model is always evaluated. 0 = never."""
    nodes: int = Field(default=0, ge=0, le=100_000)
    """Most nodes that evaluate; 0 = all connected nodes."""
    seconds: float = Field(default=30.0, gt=0.0, le=86_400.0)
    """Longest wait for the nodes."""
    on_public_data: bool = False
    """Confirms that the evaluation data need no protection; a private federation is evaluated only if this is set."""


class FederationConfig(Config):
    """A series of rounds on one model."""

    task: str = Field(default="digits", min_length=1, max_length=100)
    """Learning task installed by the nodes' operators: model, data and local training."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the learning task."""
    rounds: int = Field(default=50, ge=1, le=1_000_000)
    """Aggregated rounds after which the federation ends."""
    seed: int = Field(default=0, ge=0, lt=2**53)
    """Seed of the initial weights, the selection and local training."""
    quorum: int = Field(default=1, ge=1, le=100_000)
    """Fewest updates for a round; with fewer, it is abandoned and the model is unchanged."""
    round_seconds: float = Field(default=60.0, gt=0.0, le=86_400.0)
    """Time after which a round closes with the updates it has."""
    wait_seconds: float = Field(default=60.0, gt=0.0, le=86_400.0)
    """Longest wait for enough nodes before the federation fails."""
    max_abandoned: int = Field(default=3, ge=1, le=1_000)
    """Consecutive rounds without a quorum after which the federation fails."""
    buffer_size: int = Field(default=0, ge=0, le=100_000)
    """0 = rounds; otherwise this many updates make a version, and nodes do not wait for each other (FedBuff)."""
    max_staleness: int = Field(default=20, ge=0, le=10_000)
    """Versions that an update may lag behind when there is a buffer."""
    selection: SelectionConfig = SelectionConfig()
    rule: RuleConfig = RuleConfig()
    server: ServerConfig = ServerConfig()
    gate: GateConfig = GateConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    secure: SecureConfig = SecureConfig()
    compression: CompressionConfig = CompressionConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @property
    def fewest_updates(self) -> int:
        """Fewest updates that a version is made from."""
        return self.buffer_size or self.quorum

    @model_validator(mode="before")
    @classmethod
    def _without_single_checks(cls, values: Any) -> Any:
        """Turns off the gate's defaults that look at single updates, which a secure federation hides."""
        secure, gate = (values.get(name) or {} for name in ("secure", "gate")) if isinstance(values, dict) else ({}, {})
        if isinstance(secure, dict) and isinstance(gate, dict) and secure.get("enabled"):
            return {**values, "gate": {**dict.fromkeys(_SINGLE_UPDATE_CHECKS, 0.0), **gate}}
        return values

    @model_validator(mode="after")
    def _summable(self) -> Self:
        """Checks that a secure sum suffices: no setting may need a single update or anything but a sum."""
        if not self.secure.enabled:
            if self.privacy.mode == "distributed":
                raise ValueError("distributed noise needs a secure sum to hide it; secure.enabled must be true")
            return self
        if self.buffer_size:
            raise ValueError(f"a secure sum needs rounds; buffer_size must be 0, got {self.buffer_size}")
        if self.rule.name != "mean":
            raise ValueError(f"a secure sum only gives a mean; rule.name must be mean, got {self.rule.name}")
        for name in ("max_norm", *_SINGLE_UPDATE_CHECKS):
            if value := getattr(self.gate, name):
                raise ValueError(f"a secure sum hides the updates that gate.{name} checks; it must be 0, got {value:g}")
        if self.compression.encoding != "none":
            raise ValueError(
                f"masked updates cannot be packed; compression.encoding must be none, got {self.compression.encoding}"
            )
        if self.privacy.mode == "local":
            raise ValueError("a secure sum hides updates without local noise; privacy.mode must not be local")
        if self.privacy.mode == "none" and not 1 <= self.gate.max_samples <= LARGEST_WEIGHT:
            raise ValueError(
                f"a secure sum weights nodes by their samples up to gate.max_samples (1 = all equal);"
                f" it must be 1 to {LARGEST_WEIGHT}, got {self.gate.max_samples}"
            )
        if self.quorum < _FEWEST_SUMMED:
            raise ValueError(f"a sum of fewer than three reveals too much; quorum must be >= 3, got {self.quorum}")
        staying = self.secure.staying(self.quorum)
        if self.privacy.mode == "distributed" and self.privacy.uncounted_nodes >= staying:
            raise ValueError(
                f"a sum may have only {staying} nodes (quorum and secure.threshold); privacy.uncounted_nodes must be"
                f" < {staying}, got {self.privacy.uncounted_nodes}"
            )
        if self.selection.over_selection * self.secure.threshold > 1.0:
            raise ValueError(
                f"selection.over_selection must be <= 1 / secure.threshold = {1.0 / self.secure.threshold:.4g},"
                f" got {self.selection.over_selection:g}: a round would close with too few nodes to unmask it"
            )
        return self

    @model_validator(mode="after")
    def _possible(self) -> Self:
        """Checks that the rule works with the smallest possible round."""
        fewest = self.fewest_updates
        try:
            if self.rule.name in ("krum", "multi_krum"):
                check_krum(fewest, self.rule.liars, self.rule.chosen or 1)
            if self.rule.name == "trimmed_mean":
                check_trim(fewest, self.rule.liars)
        except InvalidInput as error:
            name = "buffer_size" if self.buffer_size else "quorum"
            raise ValueError(f"{error.message}; {name} is {fewest}") from error
        if self.quorum > self.selection.min_nodes and not self.buffer_size:
            raise ValueError(f"quorum must be <= selection.min_nodes, got {self.quorum} and {self.selection.min_nodes}")
        wanted = self.selection.wanted(self.selection.min_nodes)
        if self.quorum > wanted and not self.buffer_size:
            raise ValueError(
                f"quorum must be <= {wanted}, got {self.quorum}: a round of {self.selection.min_nodes} nodes"
                f" (selection.min_nodes) closes with a fraction of {self.selection.fraction:g} of them"
            )
        if self.privacy.mode == "central" and self.rule.name != "mean":
            raise ValueError(
                f"central privacy bounds what one node adds to a mean; rule.name must be mean, got {self.rule.name}"
            )
        if self.privacy.mode == "central" and self.gate.max_norm:
            raise ValueError(
                f"central privacy must not refuse long updates; gate.max_norm must be 0, got {self.gate.max_norm:g}"
            )
        if self.privacy.mode == "central" and self.buffer_size:
            raise ValueError("central privacy needs rounds, in which a node counts once; buffer_size must be 0")
        if self.privacy.mode != "none" and self.privacy.epsilon_budget:
            try:
                check_budget(
                    self.privacy.noise_multiplier,
                    self.privacy.delta,
                    self.privacy.epsilon_budget,
                    in_parts=self.privacy.mode == "distributed",
                )
            except InvalidInput as error:
                raise ValueError(error.message) from error
        if self.privacy.mode != "none" and self.compression.encoding != "none":
            raise ValueError("error feedback would resend what clipping removed; compression.encoding must be none")
        return self
