"""Runs joblib, and so scikit-learn's searches, on a fleet. Importing this package registers the backend "parlmesh".

import joblib, parlmesh, parlmesh.joblib

with parlmesh.fleet() as fleet, joblib.parallel_config("parlmesh", fleet=fleet):
    GridSearchCV(SVC(), {"C": [1, 10]}).fit(X, y)
"""

from joblib import register_parallel_backend

from .backend import FleetBackend

__all__ = ["FleetBackend"]

register_parallel_backend("parlmesh", FleetBackend)
