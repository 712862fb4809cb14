"""Settings of a study; the string under a field is its help text."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from parlmesh.config import Config


class Range(Config):
    """The possible values of one setting: a range of numbers, or a list of choices."""

    low: float | int | None = None
    """Lowest value; if `low` and `high` are integers, so is the setting."""
    high: float | int | None = None
    """Highest value."""
    log: bool = False
    """Search on a logarithmic scale: for step sizes and other values that span several powers of ten."""
    choices: tuple[Any, ...] = ()
    """The allowed values; any YAML value."""

    @model_validator(mode="after")
    def _one_way(self) -> "Range":
        numbers = self.low is not None and self.high is not None
        if numbers == bool(self.choices) or (self.low is None) != (self.high is None):
            raise ValueError("needs low and high, or choices")
        if numbers and not self.low < self.high:  # type: ignore[operator]
            raise ValueError(f"low must be below high, got {self.low} and {self.high}")
        if self.log and (not numbers or not self.low > 0):  # type: ignore[operator]
            raise ValueError("log needs a low above 0")
        return self


class TuneConfig(Config):
    """A study: the training to tune, the search space, and the search method."""

    training: dict[str, Any] = Field(default_factory=dict)
    """The learner's `training` section; searched settings replace its keys."""
    plugins: tuple[str, ...] = ()
    """Plug-ins of every actor, as for `parlmesh up`."""
    search: dict[str, Range] = Field(min_length=1, max_length=100)
    """Ranges by key of the training section, e.g. ppo.learning_rate."""
    trials: int = Field(default=30, ge=1, le=100_000)
    """Trials of the whole study, including those of earlier calls."""
    steps: int = Field(default=100_000, ge=1)
    """Environment steps per trial; also the step budget for schedules."""
    rungs: int = Field(default=5, ge=1, le=1_000)
    """Parts of a trial. After each, the policy is evaluated and the trial continues or is pruned."""
    sampler: Literal["tpe", "cmaes", "random"] = "tpe"
    """How settings are proposed; cmaes is for numbers and draws choices at random."""
    pruner: Literal["median", "hyperband", "none"] = "median"
    """median ends a trial whose evaluation is below the median of the others at the same rung."""
    startup_trials: int = Field(default=8, ge=1, le=10_000)
    """Random trials before the sampler and the pruner use earlier results."""
    try_defaults: bool = True
    """Use the unchanged settings in the first trial, as a baseline."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the sampler. With one trial at once, an uninterrupted study is reproducible."""
    rung_seconds: Annotated[float, Field(gt=0.0, le=1e6)] = 3600.0
    """Time limit for one part of a trial on an actor; after that it is tried again."""
    storage: Literal["journal", "sqlite"] = "journal"
    """A JSON journal, or an SQLite file."""
