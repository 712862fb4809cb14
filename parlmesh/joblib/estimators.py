"""Converts estimators, scorers and text arrays to plain values and back. The node does not trust the sender."""

import importlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import sklearn.metrics
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.gaussian_process.kernels import Kernel
from sklearn.metrics._scorer import _MultimetricScorer, _PassthroughScorer, _Scorer

from parlmesh.blobs import Reference
from parlmesh.errors import InvalidInput
from parlmesh.types import Array

Put: TypeAlias = Callable[[Array], Array | Reference]

_ESTIMATOR, _SCORER, _TEXTS, _SPARSE, _DTYPE = "$estimator", "$scorer", "$texts", "$sparse", "$dtype"
_MARKS = (_ESTIMATOR, _SCORER, _TEXTS, _SPARSE, _DTYPE)
_PLAIN = (type(None), bool, int, float, str, bytes, np.generic)


def packed(value: Any, put: Put, where: str = "") -> Any:
    """A value of JSON types and arrays; raises InvalidInput that names any other part."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.ndarray):
        return _packed_array(value, put, where)
    if isinstance(value, (list, tuple)):
        return type(value)(packed(part, put, f"{where}[{index}]") for index, part in enumerate(value))
    if isinstance(value, dict):
        if any(mark in value for mark in _MARKS):
            raise InvalidInput(f"{where} has a key of {', '.join(_MARKS)}, which are reserved", reason="KEY")
        return {key: packed(part, put, f"{where}[{key!r}]") for key, part in value.items()}
    if isinstance(value, (BaseEstimator, Kernel)):
        return _packed_estimator(value, put, where)
    if isinstance(value, (_PassthroughScorer, _MultimetricScorer, _Scorer)):
        return _packed_scorer(value, put, where)
    if isinstance(value, type) and issubclass(value, np.number):
        return {_DTYPE: np.dtype(value).name}
    if sparse.issparse(value):
        rows = sparse.csr_matrix(value)
        parts = [put(part) for part in (rows.data, rows.indices, rows.indptr)]
        return {_SPARSE: [parts, list(rows.shape)]}
    raise InvalidInput(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}; numbers, text, arrays, sparse matrices, "
        "estimators of scikit-learn and lists, tuples and dicts of these can be sent",
        reason="INVALID_PARAMETERS",
    )


def unpacked(value: Any) -> Any:
    """The inverse of `packed`; raises InvalidInput for values that a node does not accept from strangers."""
    if isinstance(value, (list, tuple)):
        return type(value)(unpacked(part) for part in value)
    if not isinstance(value, dict):
        return value
    if _ESTIMATOR in value:
        parameters = {name: unpacked(part) for name, part in value["parameters"].items()}
        return _class_at(value[_ESTIMATOR])(**checked(parameters))
    if _SCORER in value:
        return _unpacked_scorer(value)
    if _TEXTS in value:
        return np.array(value[_TEXTS], dtype=object if value.get("objects") else np.str_)
    if _DTYPE in value:
        return np.dtype(str(value[_DTYPE])).type
    if _SPARSE in value:
        (data, indices, indptr), shape = value[_SPARSE]
        return sparse.csr_matrix((data, indices, indptr), shape=tuple(shape))
    return checked({key: unpacked(part) for key, part in value.items()})


def checked(parameters: dict[Any, Any]) -> dict[Any, Any]:
    """Checks that parameters of an estimator or a search's candidate name no file of the node, and removes n_jobs.

    A cache folder is read with pickle, and a vectorizer can be told to open the files named in its input.
    """
    for name, value in parameters.items():
        last = str(name).rpartition("__")[2]
        if last == "memory" and value is not None:
            raise InvalidInput(f"{name} is {value!r:.60}; on a fleet it must be None", reason="INVALID_PARAMETERS")
        if last == "input" and isinstance(value, str) and value != "content":
            raise InvalidInput(f"{name} is {value!r:.60}; on a fleet it must be 'content'", reason="INVALID_PARAMETERS")
    # n_jobs changes no result, and the fleet decides how a node's slots are used.
    return {name: None if _is_jobs(name) else value for name, value in parameters.items()}


def _is_jobs(name: Any) -> bool:
    return str(name).rpartition("__")[2] == "n_jobs"


def _packed_array(array: Array, put: Put, where: str) -> Any:
    if array.dtype.kind == "U" or (array.dtype.kind == "O" and all(isinstance(each, str) for each in array.flat)):
        return {_TEXTS: array.tolist(), "objects": array.dtype.kind == "O"}
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"{where} is an array of {array.dtype}; numbers and text can be sent", reason="DTYPE")
    return put(array)


def _packed_estimator(estimator: Any, put: Put, where: str) -> dict[str, Any]:
    kind = type(estimator)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if not kind.__module__.startswith("sklearn."):
        raise InvalidInput(f"{where} is a {name}; only estimators of scikit-learn are on every node", reason="CLASS")
    fitted = sorted(each for each in vars(estimator) if each.endswith("_") and not each.startswith("_"))
    if fitted:
        raise InvalidInput(f"{where} is a {kind.__name__} that is fitted (it has {fitted[0]})", reason="FITTED")
    parameters = estimator.get_params(deep=False)
    return {
        _ESTIMATOR: name,
        "parameters": {key: packed(each, put, f"{where}.{key}") for key, each in parameters.items()},
    }


def _class_at(name: Any) -> type[Any]:
    module, _, attribute = str(name).partition(":")
    found = getattr(importlib.import_module(module), attribute, None) if module.startswith("sklearn.") else None
    if not isinstance(found, type) or not issubclass(found, (BaseEstimator, Kernel)):
        raise InvalidInput(f"{name!r:.100} is not a scikit-learn estimator", reason="CLASS")
    return found


def _packed_scorer(scorer: Any, put: Put, where: str) -> dict[str, Any]:
    if isinstance(scorer, _PassthroughScorer):
        return {_SCORER: "own", "estimator": packed(scorer._estimator, put, where)}
    if isinstance(scorer, _MultimetricScorer):
        scorers = {name: packed(each, put, where) for name, each in scorer._scorers.items()}
        return {_SCORER: "several", "scorers": scorers, "raise_exc": scorer._raise_exc}
    metric = getattr(scorer._score_func, "__name__", "")
    if getattr(sklearn.metrics, metric, None) is not scorer._score_func:
        raise InvalidInput(
            f"{where} scores with {metric or scorer!r}, which sklearn.metrics does not have", reason="METRIC"
        )
    return {
        _SCORER: "metric",
        "metric": metric,
        "sign": scorer._sign,
        "kwargs": packed(scorer._kwargs, put, where),
        "response_method": packed(scorer._response_method, put, where),
    }


def _unpacked_scorer(value: dict[str, Any]) -> Any:
    if value[_SCORER] == "own":
        return _PassthroughScorer(unpacked(value["estimator"]))
    if value[_SCORER] == "several":
        scorers = {name: unpacked(each) for name, each in value["scorers"].items()}
        return _MultimetricScorer(scorers=scorers, raise_exc=bool(value["raise_exc"]))
    metric = str(value.get("metric"))
    if metric not in sklearn.metrics.__all__:
        raise InvalidInput(f"{metric!r:.60} is not a metric of sklearn.metrics", reason="METRIC")
    function = getattr(sklearn.metrics, metric)
    return _Scorer(function, value["sign"], unpacked(value["kwargs"]), unpacked(value["response_method"]))
