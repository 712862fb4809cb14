"""Estimators as values: they survive a round trip, and nodes refuse what strangers may not request."""

from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import check_scoring, fbeta_score, get_scorer, make_scorer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from parlmesh.argument_values import pack, unpack
from parlmesh.errors import InvalidInput
from parlmesh.joblib.estimators import packed, unpacked
from parlmesh.joblib.remote_functions import call_function


def over_the_wire(value: Any) -> Any:
    parameters, tensors = pack({"value": packed(value, lambda array: array, "value")}, "test")
    return unpacked(unpack(parameters, tensors)["value"])


@pytest.mark.parametrize(
    "estimator",
    [
        SVC(C=3.0, gamma="auto", class_weight={0: 1.0, 1: 2.0}),
        make_pipeline(StandardScaler(with_mean=False), LogisticRegression(C=0.5)),
        GaussianProcessClassifier(kernel=RBF(2.0) + WhiteKernel()),
    ],
    ids=["alone", "pipeline", "kernel"],
)
def test_an_estimator_arrives_with_its_class_and_its_parameters(estimator: Any) -> None:
    arrived = over_the_wire(estimator)
    assert type(arrived) is type(estimator)
    assert repr(arrived) == repr(estimator)


def test_arrays_of_text_and_sparse_rows_arrive_as_they_are() -> None:
    words = np.array(["cat", "dog"])
    assert over_the_wire(words).tolist() == ["cat", "dog"]
    assert over_the_wire(words).dtype == words.dtype
    assert over_the_wire(words.astype(object)).dtype == object
    rows = sparse.csr_matrix(np.eye(3))
    assert np.array_equal(over_the_wire(rows).toarray(), rows.toarray())


@pytest.mark.parametrize(
    "scorer",
    [
        get_scorer("accuracy"),
        get_scorer("neg_log_loss"),
        make_scorer(fbeta_score, beta=2),
        check_scoring(SVC(), scoring=None),
        check_scoring(SVC(), scoring=["accuracy", "f1_macro"]),
    ],
    ids=["name", "probabilities", "made", "own", "several"],
)
def test_a_scorer_scores_there_as_it_does_here(scorer: Any) -> None:
    rows, labels = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    fitted = LogisticRegression().fit(rows, labels)
    assert over_the_wire(scorer)(fitted, rows, labels) == scorer(fitted, rows, labels)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (LogisticRegression().fit(np.eye(2), [0, 1]), "is a LogisticRegression that is fitted"),
        (make_scorer(lambda truth, answer: 1.0), "which sklearn.metrics does not have"),
        (np.array([1 + 2j]), "an array of complex128"),
        (np.random.RandomState(0), r"is a numpy.random.mtrand.RandomState; numbers, text"),
        ({"$estimator": "sklearn.svm._classes:SVC"}, "has a key of"),
    ],
    ids=["fitted", "own metric", "complex", "generator", "forged"],
)
def test_a_value_that_cannot_be_sent_is_refused_with_its_place(value: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^value.*{sentence}"):
        packed(value, lambda array: array, "value")


@pytest.mark.parametrize(
    "value",
    [
        {"$estimator": "subprocess:Popen", "parameters": {"args": ["true"]}},
        {"$estimator": "sklearn.datasets:load_files", "parameters": {}},
        {"$scorer": "metric", "metric": "__builtins__", "sign": 1, "kwargs": {}, "response_method": "predict"},
        packed(Pipeline([("scale", StandardScaler())], memory="/tmp"), lambda array: array),
        packed(CountVectorizer(input="filename"), lambda array: array),
        {"parameters": {"vector__input": "filename"}},
        {"parameters": {"memory": "/tmp"}},
    ],
    ids=["foreign class", "function", "no metric", "cache folder", "files", "candidate's files", "candidate's cache"],
)
def test_a_node_takes_no_code_folder_or_file_from_a_stranger(value: Any) -> None:
    with pytest.raises(InvalidInput):
        unpacked(value)


def test_a_node_runs_no_function_but_those_it_lists() -> None:
    with pytest.raises(InvalidInput, match=r"function is 'os.system'; it must be one of fit_and_score"):
        call_function({"function": "os.system", "args": ["true"]})


def test_an_estimator_starts_no_jobs_of_its_own_on_a_node() -> None:
    assert over_the_wire(LogisticRegression(n_jobs=1000)).n_jobs is None
    assert over_the_wire({"forest__n_jobs": 1000}) == {"forest__n_jobs": None}
