"""Calls that a fleet can run without sending code: scikit-learn's functions, by name, on values and estimators.

A search fits and scores copies of an estimator. The function that does so is on every node, an unfitted estimator is
just its class and parameters, and the rest are arrays and numbers. Nothing is pickled on either side.
"""

import importlib
import warnings
from collections.abc import Callable
from typing import Any

from sklearn import config_context

from parlmesh.errors import InvalidInput
from parlmesh.function_tasks import task

from .estimators import Put, packed, unpacked

FUNCTIONS = {
    "fit_and_score": "sklearn.model_selection._validation:_fit_and_score",
    "fit_and_predict": "sklearn.model_selection._validation:_fit_and_predict",
}
"""scikit-learn functions that a node runs: those that GridSearchCV, RandomizedSearchCV, cross_validate and such
delay."""

_CALLBACKS = ("caller", "callback_ctx")
_SETTINGS = ("assume_finite", "working_memory", "enable_metadata_routing", "skip_parameter_validation")


@task(kind="parlmesh.joblib.call")
def call_function(call: dict[str, Any]) -> Any:
    """Runs one function of FUNCTIONS on a node."""
    name = call.get("function")
    if name not in FUNCTIONS:
        raise InvalidInput(f"function is {name!r:.60}; it must be one of {', '.join(FUNCTIONS)}", reason="FUNCTION")
    module, _, attribute = FUNCTIONS[name].partition(":")
    function = getattr(importlib.import_module(module), attribute)
    args, kwargs = unpacked(call.get("args", [])), unpacked(call.get("kwargs", {}))
    settings = {key: value for key, value in call.get("settings", {}).items() if key in _SETTINGS}
    with config_context(**settings), warnings.catch_warnings():
        warnings.simplefilter("ignore" if call.get("warnings") == "ignore" else "default")
        return packed(function(*args, **kwargs), lambda array: array)


def packed_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], put: Put) -> dict[str, Any]:
    """The call as a value; raises InvalidInput for an argument that cannot be sent."""
    settings = getattr(function, "config", {})
    return {
        "function": _names()[_inner(function)],
        "args": [packed(value, put, f"argument {index}") for index, value in enumerate(args)],
        # The caller is only used by callbacks.
        "kwargs": {name: packed(value, put, name) for name, value in kwargs.items() if name not in _CALLBACKS},
        "settings": {name: settings[name] for name in _SETTINGS if name in settings},
        "warnings": _action(getattr(function, "warning_filters", ())),
    }


def stays_here(function: Any, kwargs: dict[str, Any]) -> str:
    """Why a call by scikit-learn runs in this process; empty if the fleet runs it.

    A user's own function never runs here silently: it is refused, and the error says why.
    """
    inner = _inner(function)
    if inner not in _names():
        if function_name(function).startswith(("sklearn.", "scipy.", "builtins.")):
            return "nodes only run the functions of searches and cross-validations"
        raise InvalidInput(
            f"{function_name(function)} is not a task; decorate it with @parlmesh.task", reason="NOT_A_TASK"
        )
    if getattr(kwargs.get("caller"), "_skl_callbacks", None):
        return "its callbacks are in this process"
    return "a fitted estimator cannot be sent back" if kwargs.get("return_estimator") else ""


def function_name(function: Any) -> str:
    """Module and name of a function, for messages."""
    inner = _inner(function)
    owner = getattr(inner, "__self__", None)
    module = getattr(inner, "__module__", None) or type(owner).__module__
    return f"{module}.{getattr(inner, '__qualname__', type(inner).__name__)}"


def _inner(function: Any) -> Any:
    # scikit-learn wraps delayed functions to carry its settings along.
    return getattr(function, "function", function)


def _names() -> dict[Callable[..., Any], str]:
    found: dict[Callable[..., Any], str] = {}
    for name, place in FUNCTIONS.items():
        module, _, attribute = place.partition(":")
        found[getattr(importlib.import_module(module), attribute)] = name
    return found


def _action(filters: Any) -> str:
    """The action of a filter for all warnings; filters for specific warnings are not sent."""
    for action, message, category, module, *_ in filters:
        if message is None and module is None and category is Warning:
            return str(action)
    return "default"
