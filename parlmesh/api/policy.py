"""A trained policy for use in programs: observations in, actions out, in numpy if the network allows it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from parlmesh.durable_files import replace_file
from parlmesh.errors import FailedPrecondition, InvalidInput, NotFound
from parlmesh.exports.hub import POLICY, hub_environment
from parlmesh.plugins import load_plugins
from parlmesh.policies import load_policy as policy_of
from parlmesh.policies import unpack_policy
from parlmesh.policies.policy_file import environment_in, with_environment
from parlmesh.types import Array

from .observations import Reader
from .train_arguments import plugin_sources

if TYPE_CHECKING:
    from .train_call import TrainingRun

_MODELS = "models"
SETTINGS = "learner.effective.yaml"
"""File in a run's folder with its configuration."""


class TrainedPolicy:
    """Chooses actions for one environment, or for several at once.

    A recurrent policy remembers from call to call: call `reset` at the start of an episode.
    """

    def __init__(
        self,
        blob: bytes,
        environment: Mapping[str, Any] | None = None,
        seed: int | None = None,
        plugins: Sequence[str] = (),
    ) -> None:
        self._blob = blob
        self.policy = policy_of(blob)
        """The policy as collectors use it, on rows of observations."""
        self.spec, weights = unpack_policy(blob)
        for name, tensor in weights.items():
            if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
                raise InvalidInput(f"policy tensor {name} has values that are not finite", tensor=name)
        self.environment = dict(environment or {})
        """The environment it was trained in, in the form of `training.environment`; empty if unknown."""
        self._reader = Reader(self.spec, self.environment, plugins)
        self._rng = np.random.default_rng(seed)
        self._state: Array | None = None

    def __repr__(self) -> str:
        spec = self.spec
        seen = f"one of {spec.observation_states} states" if spec.observation_states else list(spec.observation_shape)
        return f"<policy for {self.environment.get('id') or 'an unknown environment'}: {spec.network}, observes {seen}>"

    def reset(self) -> None:
        """Starts an episode."""
        self._state = None
        self._reader.reset()

    def act(self, observation: Any, *, deterministic: bool = True, mask: Any = None) -> Any:
        """Chooses the likeliest action, or samples one as in training.

        Takes observations of one environment, or of several as rows, and returns what its `step` takes. `mask` gives
        the allowed choices if the observation does not contain them.
        """
        seen, single = self._reader.read(observation)
        allowed = self._reader.mask(observation, mask, len(seen), single=single)
        if self._state is None or len(self._state) != len(seen):
            self._state = self.policy.initial_state(len(seen))
        if deterministic:
            choice = self.policy.greedy(seen, allowed, self._state)
        else:
            choice = self.policy.act(seen, self._rng, allowed, self._state)
        self._state = choice.state
        return self._reader.give(self.policy.to_environment(choice.action), single=single)

    def choose_action(self, observation: Any) -> Any:
        """An alias of `act(observation)`."""
        return self.act(observation)

    def save(self, path: str | Path) -> Path:
        """Writes a .safetensors file, with the environment, that `load_policy` and actors read."""
        file = Path(path)
        if file.suffix != ".safetensors":
            raise InvalidInput(f"{file} must end in .safetensors", reason="INVALID_FILE")
        try:
            replace_file(file, with_environment(self._blob, self.environment) if self.environment else self._blob)
        except OSError as error:
            raise FailedPrecondition(f"{file} cannot be written: {error.strerror}", reason="CANNOT_WRITE") from error
        return file

    save_model = save

    @classmethod
    def load_model(cls, source: "str | Path | TrainingRun") -> "TrainedPolicy":
        """An alias of `parlmesh.load_policy(source)`."""
        return load_policy(source)


def load_policy(
    source: "str | Path | TrainingRun",
    *,
    version: int = 0,
    environment: Mapping[str, Any] | str | None = None,
    plugins: Sequence[str] = (),
) -> TrainedPolicy:
    """Loads the policy of a run (its handle or its folder), a hub folder, or a .safetensors file.

    From a run's folder: `version`, or the promoted model, else the best evaluated one, else the newest. Pass
    `environment` for a file that does not name it if observations or actions are more than plain arrays. `plugins`
    name those that bring its environment or its network; a run's folder names them only in its settings, because
    loading a policy must not run code that its folder chose.
    """
    if not isinstance(source, (str, Path)):
        return _policy_of(source)
    place = Path(source)
    load_plugins(plugin_sources(plugins))
    known = {"id": environment} if isinstance(environment, str) else environment
    if place.is_dir() and (place / POLICY).is_file() and not (place / _MODELS).is_dir():
        return TrainedPolicy((place / POLICY).read_bytes(), known or hub_environment(place))
    if place.is_dir():
        return TrainedPolicy(chosen_model(place, version).read_bytes(), known or _environment_of(place))
    if not place.is_file():
        raise NotFound(f"there is no model or run at {place}", reason="NO_MODEL")
    blob = place.read_bytes()
    try:
        return TrainedPolicy(blob, known or environment_in(blob) or _environment_of(place.parent.parent))
    except InvalidInput as error:
        if place.suffix != ".safetensors":
            raise InvalidInput(
                f"{place} is not a policy; load_policy reads a run's folder, a hub folder or a .safetensors file",
                reason="INVALID_SOURCE",
            ) from error
        raise InvalidInput(f"{place} cannot be read: {error.message}", reason=error.reason) from error


def _policy_of(source: Any) -> TrainedPolicy:
    policy = source if isinstance(source, TrainedPolicy) else getattr(source, "policy", None)
    if not isinstance(policy, TrainedPolicy):
        raise InvalidInput(
            f"source is {source!r:.60}; it must be a run, its folder, or a .safetensors file", reason="INVALID_SOURCE"
        )
    return policy


def chosen_model(folder: Path, version: int, *, best: bool = False) -> Path:
    """The file of a model in a run's folder; raises NotFound if there is none. `best` ignores the promoted model."""
    models = folder / _MODELS
    if version:
        file = models / f"v{version:08d}.safetensors"
        if not file.exists():
            kept = ", ".join(str(int(each.stem[1:])) for each in sorted(models.glob("v*.safetensors"))) or "none"
            raise NotFound(f"{folder} has no model of version {version}; it has: {kept}", reason="UNKNOWN_MODEL")
        return file
    abouts = {each.stem: _read(each) for each in sorted(models.glob("v*.json"))}
    if not abouts:
        raise NotFound(f"{folder} has no model yet", reason="NO_MODEL")
    promoted = _read(models / "promoted.json").get("version")
    if isinstance(promoted, int) and promoted > 0 and not best:
        return chosen_model(folder, promoted)
    returns = {name: _metadata(about).get("evaluation_return") for name, about in abouts.items()}
    evaluated = [name for name, value in returns.items() if isinstance(value, (int, float))]
    if best and not evaluated:
        raise NotFound(f"no model in {folder} was evaluated, so there is no best one", reason="NO_MODEL")
    found = max(evaluated, key=lambda name: (returns[name], name), default=max(abouts))
    return models / f"{found}.safetensors"


def known_of(model: Path) -> dict[str, Any]:
    """Metadata of a model in a run's folder: environment, algorithm, steps, evaluation_return and so on."""
    return _metadata(_read(model.with_suffix(".json")))


def _environment_of(folder: Path) -> dict[str, Any]:
    try:
        settings = yaml.safe_load((folder / SETTINGS).read_text(encoding="utf-8"))
        return dict(settings["training"]["environment"])
    except (OSError, TypeError, KeyError, ValueError, RecursionError, yaml.YAMLError):
        return {}


def _metadata(about: dict[str, Any]) -> dict[str, Any]:
    found = about.get("metadata")
    return found if isinstance(found, dict) else {}


def _read(path: Path) -> dict[str, Any]:
    """Empty if the file is missing or damaged: a model is usable without its metadata."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
