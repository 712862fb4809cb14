"""Runs joblib, and so scikit-learn's searches, on a fleet. Importing this package registers the backend "parlmesh".

import joblib, parlmesh, parlmesh.joblib

with parlmesh.fleet() as fleet, joblib.parallel_config("parlmesh", fleet=fleet):
    GridSearchCV(SVC(), {"C": [1, 10]}).fit(X, y)
"""

from parlmesh.optional_packages import need

need("parlmesh.joblib", "joblib", "joblib", "sklearn", "scipy")

from joblib import register_parallel_backend  # noqa: E402

from .backend import FleetBackend  # noqa: E402

__all__ = ["FleetBackend"]

register_parallel_backend("parlmesh", FleetBackend)
