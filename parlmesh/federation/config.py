"""What a federation can be told; the string under a field is its help text. Impossible settings are refused here."""

import math
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from parlmesh.config import Config
from parlmesh.errors import InvalidInput

from .aggregators import check_krum, check_trim
from .privacy import check_budget
from .secure.fixed_point import LARGEST_WEIGHT, LEAST_NOISE_MULTIPLIER

_FEWEST_SUMMED = 3
# What looks at a single update, and is off in a secure federation unless it is asked for.
_SINGLE_UPDATE_CHECKS = ("outlier_factor", "clip_factor", "weight_cap_factor")


class SelectionConfig(Config):
    """Which nodes are asked in a round."""

    min_nodes: int = Field(default=1, ge=1, le=100_000)
    """Connected nodes that a round needs before it begins."""
    fraction: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of the connected nodes whose updates a round wants, chosen at random."""
    over_selection: float = Field(default=1.0, ge=1.0, le=10.0)
    """So many times more nodes are asked than wanted; the round closes when the wanted number has answered."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Only nodes with all of these labels."""
    nodes: tuple[str, ...] = Field(default=(), max_length=100_000)
    """Only these nodes; none = all."""
    virtual_nodes: int = Field(default=0, ge=0, le=100_000)
    """Most nodes that one actor may stand for; an actor that claims more is left out. 0 = none may, as in real life."""
    virtual_voters: bool | tuple[str, ...] = False
    """Each virtual node has a vote of its own: where all hosts are yours, as in a simulation, or of the hosts that are
    named here, for which you vouch. Else a host has one."""

    def wanted(self, nodes: int) -> int:
        """Updates with which a round of this many connected nodes closes."""
        return max(1, math.ceil(self.fraction * nodes - 1e-9))


class RuleConfig(Config):
    """How updates are joined."""

    name: Literal["mean", "clipped_mean", "median", "trimmed_mean", "krum", "multi_krum", "geometric_median"] = "mean"
    """mean is FedAvg's; the others hold against nodes that lie."""
    liars: int = Field(default=1, ge=0, le=10_000)
    """Liars that krum, multi_krum and trimmed_mean must stand."""
    chosen: int = Field(default=0, ge=0, le=100_000)
    """Updates that multi_krum averages; 0 = all but the liars."""
    clip_norm: float = Field(default=0.0, ge=0.0)
    """Longest update of clipped_mean; 0 = the median of the round, of two the shorter one."""

    @property
    def by_votes(self) -> bool:
        """Whether every voter counts the same; else samples weigh."""
        return self.name not in ("mean", "clipped_mean")

    @property
    def fewest_voters(self) -> int:
        """Votes without which the rule says nothing."""
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
    """What the server does with the joint update."""

    optimiser: Literal["fedavg", "fedavgm", "nesterov", "fedadam", "fedyogi"] = "fedavg"
    """fedavg takes the plain step; the others have moments. nesterov is DiLoCo's."""
    learning_rate: float = Field(default=1.0, ge=0.0, le=100.0)
    """Share of the joint update that is applied."""
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Decay of the first moment (beta 1)."""
    beta2: float = Field(default=0.99, ge=0.0, lt=1.0)
    """Decay of the second moment (beta 2)."""
    tau: float = Field(default=1e-3, gt=0.0)
    """Added to the root of the second moment."""


class GateConfig(Config):
    """What an update must be to count. Identity, round, nonce, schema and size are always checked."""

    finite: bool = True
    """Refuse updates with a number that is not finite. Only to see what happens without."""
    max_norm: float = Field(default=0.0, ge=0.0)
    """Longest update accepted; 0 = any."""
    outlier_factor: float = Field(default=5.0, ge=0.0)
    """Updates longer than this many times the round's median are left out, with three or more; 0 = none is."""
    clip_factor: float = Field(default=2.0, ge=0.0)
    """The rule mean shortens updates to this many times the round's median (with two, the shorter one's); 0 = never."""
    max_samples: int = Field(default=0, ge=0)
    """Most samples a node is believed; 0 = any number."""
    weight_cap_factor: float = Field(default=2.0, ge=0.0)
    """A node weighs at most this many times the median (with two, the smaller); 0 = no cap."""
    max_strikes: int = Field(default=3, ge=0, le=1_000)
    """Bad answers in a row after which a node is left out of 20 rounds, if enough others are there; 0 = any number."""


class PrivacyConfig(Config):
    """Differential privacy of nodes."""

    mode: Literal["none", "central", "local", "distributed"] = "none"
    """central: the learner clips and adds noise to the mean; local: every node does so before it sends. distributed:
    nodes clip and add a part of the noise each, which only a secure sum shows, as a whole."""
    clip_norm: float = Field(default=1.0, ge=1e-9)
    """Longest update that counts; a longer one is shortened to it."""
    noise_multiplier: float = Field(default=1.0, gt=0.0, le=1_000.0)
    """Deviation of the noise in units of clip_norm."""
    delta: float = Field(default=1e-5, gt=0.0, lt=1.0)
    """Probability that the guarantee does not hold."""
    epsilon_budget: float = Field(default=0.0, ge=0.0)
    """The federation ends before it gives away more; 0 = no budget."""
    uncounted_nodes: int = Field(default=1, ge=0, le=199)
    """Nodes of a distributed round whose part of the noise is not counted on: they may know it, tell it or leave it
    out. A node that gets the model knows its own."""

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
    """Nodes mask their updates so that only the sum can be unmasked. Needs three nodes and the rule mean."""
    threshold: float = Field(default=0.6, gt=0.5, le=1.0)
    """Share of a round's nodes that must stay to its end; with fewer it is abandoned."""
    largest_value: float = Field(default=4.0, gt=0.0, le=1e6)
    """Largest number in an update; the smaller it is, the finer the fixed-point numbers are."""
    step_seconds: float = Field(default=10.0, gt=0.0, le=3_600.0)
    """Longest wait for nodes' keys, for their shares, and for what unmasks the sum."""

    def staying(self, nodes: int) -> int:
        """Nodes that must stay to the end: above half of them, so that nobody gets two kinds of shares of one node."""
        return max(nodes // 2 + 1, math.ceil(self.threshold * nodes - 1e-9))


class CompressionConfig(Config):
    """How updates are packed."""

    encoding: Literal["none", "int8", "top_k"] = "none"
    """none is float32; both others keep what they leave out for the next round."""
    ratio: float = Field(default=0.01, gt=0.0, le=1.0)
    """Share of the numbers that top_k sends."""


class EvaluationConfig(Config):
    """How models are evaluated: by nodes, on data of their own that they do not train on."""

    interval_rounds: int = Field(default=1, ge=0, le=100_000)
    """Rounds between two evaluations; the last model is always evaluated. 0 = never."""
    nodes: int = Field(default=0, ge=0, le=100_000)
    """Most nodes that are asked; 0 = all that are connected."""
    seconds: float = Field(default=30.0, gt=0.0, le=86_400.0)
    """Longest wait for them."""
    on_public_data: bool = False
    """A private federation is evaluated only when this says that the evaluation data need no protection."""


class FederationConfig(Config):
    """A series of rounds on one model."""

    task: str = Field(default="digits", min_length=1, max_length=100)
    """Learning task that the nodes' operators installed: model, data and local training."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the learning task."""
    rounds: int = Field(default=50, ge=1, le=1_000_000)
    """Rounds that are aggregated before the federation ends."""
    seed: int = Field(default=0, ge=0, lt=2**53)
    """Decides first weights, selection and local training."""
    quorum: int = Field(default=1, ge=1, le=100_000)
    """Fewest updates that a round may be made of; below it, it is abandoned and the model stays."""
    round_seconds: float = Field(default=60.0, gt=0.0, le=86_400.0)
    """A round closes after so long, with what has come."""
    wait_seconds: float = Field(default=60.0, gt=0.0, le=86_400.0)
    """Longest wait for enough nodes before the federation fails."""
    max_abandoned: int = Field(default=3, ge=1, le=1_000)
    """Rounds in a row without a quorum after which the federation fails."""
    buffer_size: int = Field(default=0, ge=0, le=100_000)
    """0 = rounds; otherwise this many updates make a version, and no node waits for another (FedBuff)."""
    max_staleness: int = Field(default=20, ge=0, le=10_000)
    """Versions that an update may be behind when there is a buffer."""
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
        """What a round is made of at least."""
        return self.buffer_size or self.quorum

    @model_validator(mode="before")
    @classmethod
    def _without_single_checks(cls, values: Any) -> Any:
        """The gate's defaults would look at what a secure federation hides."""
        secure, gate = (values.get(name) or {} for name in ("secure", "gate")) if isinstance(values, dict) else ({}, {})
        if isinstance(secure, dict) and isinstance(gate, dict) and secure.get("enabled"):
            return {**values, "gate": {**dict.fromkeys(_SINGLE_UPDATE_CHECKS, 0.0), **gate}}
        return values

    @model_validator(mode="after")
    def _summable(self) -> Self:
        """What a secure sum allows: nothing that needs a single update, and nothing that is not a sum."""
        if not self.secure.enabled:
            if self.privacy.mode == "distributed":
                raise ValueError("distributed noise is hidden by a secure sum alone; secure.enabled must be true")
            return self
        if self.buffer_size:
            raise ValueError(f"a secure sum needs rounds; buffer_size must be 0, got {self.buffer_size}")
        if self.rule.name != "mean":
            raise ValueError(f"a secure sum can only be a mean; rule.name must be mean, got {self.rule.name}")
        for name in ("max_norm", *_SINGLE_UPDATE_CHECKS):
            if value := getattr(self.gate, name):
                raise ValueError(f"a secure sum hides what gate.{name} looks at; it must be 0, got {value:g}")
        if self.compression.encoding != "none":
            raise ValueError(
                f"masked updates cannot be packed; compression.encoding must be none, got {self.compression.encoding}"
            )
        if self.privacy.mode == "local":
            raise ValueError("a secure sum hides updates without noise of their own; privacy.mode must not be local")
        if self.privacy.mode == "none" and not 1 <= self.gate.max_samples <= LARGEST_WEIGHT:
            raise ValueError(
                f"a secure sum weighs nodes by their samples up to gate.max_samples (1 = all alike);"
                f" it must be 1 to {LARGEST_WEIGHT}, got {self.gate.max_samples}"
            )
        if self.quorum < _FEWEST_SUMMED:
            raise ValueError(f"a secure sum of fewer than three tells too much; quorum must be >= 3, got {self.quorum}")
        staying = self.secure.staying(self.quorum)
        if self.privacy.mode == "distributed" and self.privacy.uncounted_nodes >= staying:
            raise ValueError(
                f"a sum may be of {staying} nodes (quorum and secure.threshold); privacy.uncounted_nodes must be"
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
        """A rule must be able to work with the smallest round that can happen."""
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
                f"central privacy refuses no update for its length; gate.max_norm must be 0, got {self.gate.max_norm:g}"
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
            raise ValueError("error feedback would carry what privacy cut off; compression.encoding must be none")
        return self
