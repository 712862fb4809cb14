"""What a study is made of; the string under a field is its help text."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from parlmesh.config import Config


class Range(Config):
    """What one setting may be: numbers between two, or one of several values."""

    low: float | int | None = None
    """The least; with `high` both whole numbers, it is a whole number."""
    high: float | int | None = None
    """The most."""
    log: bool = False
    """Search its logarithm: for step sizes and whatever spans several powers of ten."""
    choices: tuple[Any, ...] = ()
    """The values, any that YAML can write."""

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
    """A study: the training that is tuned, what is searched, and how."""

    training: dict[str, Any] = Field(default_factory=dict)
    """The learner's `training` section; what is searched replaces its keys."""
    plugins: tuple[str, ...] = ()
    """Plug-ins of every actor, as for `parlmesh up`."""
    search: dict[str, Range] = Field(min_length=1, max_length=100)
    """Ranges by key of the training section, e.g. ppo.learning_rate."""
    trials: int = Field(default=30, ge=1, le=100_000)
    """Trials of the whole study, those of earlier calls included."""
    steps: int = Field(default=100_000, ge=1)
    """Environment steps of a trial; the step budget that schedules are read against."""
    rungs: int = Field(default=5, ge=1, le=1_000)
    """Parts of a trial. After each its policy is evaluated, and the trial goes on or is pruned."""
    sampler: Literal["tpe", "cmaes", "random"] = "tpe"
    """What proposes settings; cmaes is for numbers and draws choices at random."""
    pruner: Literal["median", "hyperband", "none"] = "median"
    """median ends a trial whose evaluation is below the median of the others at the same rung."""
    startup_trials: int = Field(default=8, ge=1, le=10_000)
    """Trials drawn at random before the sampler and the pruner judge by what was seen."""
    try_defaults: bool = True
    """The first trial has the settings as they are: whatever is found is compared with them."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of the sampler. With one worker a study that is not interrupted repeats itself."""
    rung_seconds: Annotated[float, Field(gt=0.0, le=1e6)] = 3600.0
    """Longest part of a trial on an actor; then it is tried again elsewhere."""
    storage: Literal["journal", "sqlite"] = "journal"
    """A JSON journal, or an SQLite file."""
