"""Environments as the collector steps them: many at once, with one array of observations and one of masks.

Gymnasium's NEXT_STEP autoreset is required: the observation after the last step of an episode is then the true final
one, so values can be bootstrapped from it, and the next step only resets and is marked invalid.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from parlmesh.errors import InvalidInput
from parlmesh.exception_text import place, sentence_at
from parlmesh.types import ACTION_MASK, Array, EnvironmentSpec, Search

from .environment_threads import SteppedEnvironments
from .frame_stack import FrameStack
from .spaces import Layout, acted, mask_width, observed, refusal
from .two_players import Finished, Opponent, Opposed, Searched
from .wrappers import Wrap, wrappers_of

GROUP = "parlmesh.environments"
"""Entry-point group in which installed packages register the environments of a namespace, under the namespace's name.
An entry point with the name of another package handles that package's module:id and returns the id it registered."""


# Gymnasium's own namespace for Atari games, whose package registers them when it is imported.
_ATARI, _ATARI_PACKAGE = "ALE", "ale_py"


class Seen(NamedTuple):
    """Observations [E, ...] and, for masked environments, the allowed actions [E, choices]."""

    observation: Array
    mask: Array | None


class Environments:
    """`num_envs` copies of {"id": ..., "kwargs": {...}}, in the environment's native vector form if it has one.

    "wrappers" names gymnasium wrappers, innermost first, each with its arguments. "image" says where an image has its
    channels; the policy sees them first. "observed" lists the positions of an observation that are visible; the others
    are hidden. "stacked" is the number of last observations that are seen together. "threads" is the number of threads
    that step them; without it one thread does, or several on one core if steps mostly wait.
    """

    def __init__(self, environment: Mapping[str, Any], num_envs: int) -> None:
        self._envs = _make(environment, num_envs)
        try:
            self._acted = acted(self._envs.single_action_space)
            space = self._envs.single_observation_space
            layout: Layout = environment.get("image") or "auto"
            self._read = observed(space, layout=layout, float64=bool(environment.get("float64")))
            choices, masks = self._acted.spec.outputs, mask_width(space)
            if masks not in (None, choices):
                raise refusal(f"{ACTION_MASK} must have one entry per choice, {choices}, got {masks}")
            self._observed = _positions(environment.get("observed"), self._read.shape, masked=masks is not None)
            self._stack = FrameStack(int(environment.get("stacked") or 1), self._seen_shape())
        except InvalidInput:
            self._envs.close()
            raise
        states, dtype = self._read.states, self._read.dtype
        shape = self._stack.shape if not states else ()
        self._games = self._envs if isinstance(self._envs, Opposed) else None
        opposed = self._games is not None
        self.spec = EnvironmentSpec(shape, dtype, self._acted.spec, states, masked=masks is not None, opposed=opposed)
        self._ended = np.zeros(num_envs, np.bool_)

    def reset(self, seed: int) -> Seen:
        """The first observations."""
        try:
            given, _ = self._envs.reset(seed=seed)
        except ValueError as error:
            raise _misfit(self._envs, error) from error
        self._ended = np.ones_like(self._ended)
        return self._seen(given)

    def step(self, action: Array) -> tuple[Seen, Array, Array, Array]:
        """The next observations, rewards, terminations and truncations, each [E]."""
        try:
            given, reward, terminated, truncated, _ = self._envs.step(self._acted.give(action))
        except ValueError as error:
            raise _misfit(self._envs, error) from error
        seen = self._seen(given)
        self._ended = terminated | truncated
        return seen, reward, terminated, truncated

    def face(self, opponents: Sequence[Opponent]) -> None:
        """Sets the opponents of new games; raises InvalidInput for environments with one player."""
        if self._games is None:
            raise InvalidInput("opponents are for games, and this environment has one player", reason="OPPONENT")
        self._games.face(opponents)

    def searching(self, policy: Any, search: Search) -> Any:
        """A policy that searches in these environments; raises InvalidInput if they do not support search."""
        if not isinstance(self._envs, Searched):
            raise InvalidInput("search is for games, and this environment cannot be looked ahead in", reason="SEARCH")
        return self._envs.searching(policy, search)

    def finished(self) -> list[Finished]:
        """Games that ended since the last call; empty without a second player."""
        return self._games.finished() if self._games is not None else []

    def rest(self, resting: Array) -> None:
        """Marks environments [E] that need no more steps; ignore what they return from now on."""
        if isinstance(self._envs, SteppedEnvironments):
            self._envs.resting = resting
        elif self._games is not None:
            self._games.rest(resting)

    @property
    def separate(self) -> bool:
        """Whether each environment has its own random numbers and can be restarted without the others."""
        return isinstance(self._envs, SteppedEnvironments)

    def start_anew(self, seeds: Mapping[int, int]) -> None:
        """Restarts these environments with their seeds in the next step; only if they are `separate`."""
        assert isinstance(self._envs, SteppedEnvironments)
        self._envs.seeds = dict(seeds)
        self._ended[list(seeds)] = True

    def close(self) -> None:
        """Closes the environments."""
        self._envs.close()

    def _seen(self, given: Any) -> Seen:
        seen = self._read.take(given)
        if self._observed is not None:
            seen = seen[:, self._observed]
        mask = None if self._read.mask is None else self._read.mask(given)
        # The observation after an end is the first one of an episode.
        return Seen(self._stack.add(seen, self._ended), mask)

    def _seen_shape(self) -> tuple[int, ...]:
        return self._read.shape if self._observed is None else (len(self._observed),)


def single_environment(environment: Mapping[str, Any], **arguments: Any) -> gymnasium.Env[Any, Any]:
    """A single gymnasium environment with its wrappers; `arguments` are added to its constructor's."""
    name, given = str(environment.get("id", "")), {**(environment.get("kwargs") or {}), **arguments}
    wrappers = wrappers_of(environment.get("wrappers") or {})
    try:
        return _single(_registered(name), wrappers, given)
    except (gymnasium.error.Error, TypeError, ValueError, ImportError) as error:
        raise InvalidInput(f"environment {name!r} cannot be made: {_said(error)}", reason="ENVIRONMENT") from error


def environment_spec(environment: Mapping[str, Any]) -> EnvironmentSpec:
    """Shapes of an environment, read from an instance that is closed again."""
    envs = Environments(environment, 1)
    envs.close()
    return envs.spec


def spaces_of(environment: Mapping[str, Any]) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Observation and action space of an environment, read from an instance that is closed again."""
    envs = _make(environment, 1)
    envs.close()
    return envs.single_observation_space, envs.single_action_space


def _make(environment: Mapping[str, Any], num_envs: int) -> VectorEnv:
    name, arguments = str(environment.get("id", "")), dict(environment.get("kwargs") or {})
    wrappers = wrappers_of(environment.get("wrappers") or {})
    try:
        known = _registered(name)
        if gymnasium.spec(known).vector_entry_point is not None and not wrappers:
            envs = gymnasium.make_vec(known, num_envs, vectorization_mode="vector_entry_point", **arguments)
        else:
            make = functools.partial(_single, known, wrappers, arguments)
            envs = SteppedEnvironments([make] * num_envs, environment.get("threads"))
    except (gymnasium.error.Error, TypeError, ValueError, ImportError) as error:
        raise InvalidInput(f"environment {name!r} cannot be made: {_said(error)}", reason="ENVIRONMENT") from error
    if envs.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
        envs.close()
        raise InvalidInput(f"environment {name!r} must reset in the NEXT_STEP mode", reason="ENVIRONMENT")
    return envs


def _single(name: str, wrappers: Iterable[Wrap], arguments: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    made: gymnasium.Env[Any, Any] = gymnasium.make(name, **arguments)
    for wrap in wrappers:
        made = wrap(made)
    return made


def _said(error: Exception) -> str:
    said = sentence_at(error) if place(error) else str(error)
    if (
        isinstance(error, (gymnasium.error.NameNotFound, gymnasium.error.NamespaceNotFound))
        and "Did you mean" not in said
    ):
        return f"{said.rstrip('.?')}; if a plug-in brings it, name that too (plugins, --plugin)"
    return said


def _misfit(envs: VectorEnv, error: ValueError) -> Exception:
    """A clearer error for an observation whose shape does not match its space, since gymnasium names neither shape."""
    space = envs.single_observation_space
    for given in getattr(envs, "_env_obs", ()):
        if space.shape is not None and given is not None and np.shape(given) != space.shape:
            said = f"an observation has the shape {np.shape(given)}, the observation space says {space.shape}"
            return InvalidInput(said, reason="ENVIRONMENT_SPACE")
    if "values to unpack (expected 5" in str(error):
        # The interface before gymnasium 0.26 had one flag; the code that unpacks the result is not at fault.
        cls = type(getattr(envs, "envs", [envs])[0].unwrapped)
        values = "observation, reward, terminated, truncated, info"
        said = f"step() of {cls.__module__}.{cls.__qualname__} must return 5 values: {values}"
        return InvalidInput(said, reason="ENVIRONMENT_STEP")
    return error


def _registered(name: str) -> str:
    """The id of module:id or module:Class, after importing the module and, if needed, calling its `register_envs`.

    For an id in a namespace that gymnasium does not know, loads the entry point with the namespace's name.
    """
    module, colon, known = name.rpartition(":")
    if not colon:
        namespace, slash, _ = name.partition("/")
        if slash and name not in gymnasium.registry:
            if namespace == _ATARI and importlib.util.find_spec(_ATARI_PACKAGE) is not None:
                importlib.import_module(_ATARI_PACKAGE)  # registers them
            for offered in importlib.metadata.entry_points(group=GROUP, name=namespace):
                offered.load()()
        return name
    if not all(part.isidentifier() for part in module.split(".")):
        raise InvalidInput(f"environment {name!r} must be an id, or module:id", reason="ENVIRONMENT")
    for offered in importlib.metadata.entry_points(group=GROUP, name=module.partition(".")[0]):
        return str(offered.load()(name))
    imported = importlib.import_module(module)
    register, named = getattr(imported, "register_envs", None), getattr(imported, known, None)
    if known not in gymnasium.registry and callable(register):
        register()
    if known not in gymnasium.registry and isinstance(named, type):
        known = f"{module.rpartition('.')[2]}/{known}"
        if known not in gymnasium.registry:
            gymnasium.register(id=known, entry_point=named)  # type: ignore[arg-type]
    return known


def _positions(wanted: Any, shape: tuple[int, ...], *, masked: bool) -> Array | None:
    if wanted is None:
        return None
    if len(shape) != 1 or masked:
        raise refusal(f"only a flat observation can be partly hidden, not one of shape {shape}")
    (size,) = shape
    positions = [int(position) for position in wanted]
    if not positions or len(set(positions)) < len(positions) or not all(0 <= position < size for position in positions):
        raise refusal(f"observed must name different positions from 0 to {size - 1}, got {positions}")
    return np.array(positions)
