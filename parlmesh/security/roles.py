"""The table of which role may call which method. An operator may call everything."""

from collections.abc import Mapping

from .identity import Role

_READER = frozenset({Role.READER})
_ACTOR = frozenset({Role.ACTOR})
_BOTH = _READER | _ACTOR
_NONE: frozenset[Role] = frozenset()

OPEN_METHODS = frozenset(f"/grpc.health.v1.Health/{method}" for method in ("Check", "List", "Watch"))
"""Callable without a credential, so that probes work."""

ROLES_BY_METHOD: Mapping[str, frozenset[Role]] = {
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _READER,
    "/parlmesh.v1.BlobService/GetBlob": _BOTH,
    "/parlmesh.v1.BlobService/HoldBlobs": _NONE,
    "/parlmesh.v1.BlobService/PutBlob": _ACTOR,
    "/parlmesh.v1.ExperienceService/UploadTrajectories": _ACTOR,
    "/parlmesh.v1.FederationService/GetFederatedModel": _BOTH,
    "/parlmesh.v1.FederationService/GetFederation": _READER,
    "/parlmesh.v1.FederationService/ListFederations": _READER,
    "/parlmesh.v1.FederationService/ListRounds": _READER,
    "/parlmesh.v1.FederationService/StartFederation": _NONE,
    "/parlmesh.v1.FederationService/StopFederation": _NONE,
    "/parlmesh.v1.FederationService/SubmitUpdate": _ACTOR,
    "/parlmesh.v1.FederationService/SubmitUpdates": _ACTOR,
    "/parlmesh.v1.FederationService/WatchFederatedModel": _BOTH,
    "/parlmesh.v1.FleetService/Connect": _ACTOR,
    "/parlmesh.v1.MetricsService/QueryMetrics": _READER,
    "/parlmesh.v1.ModelService/DeleteModel": _NONE,
    "/parlmesh.v1.ModelService/ExportModel": _NONE,
    "/parlmesh.v1.ModelService/GetModel": _READER,
    "/parlmesh.v1.ModelService/ListModels": _READER,
    "/parlmesh.v1.ModelService/PromoteModel": _NONE,
    "/parlmesh.v1.PolicyService/GetPolicy": _BOTH,
    "/parlmesh.v1.PolicyService/WatchPolicy": _BOTH,
    "/parlmesh.v1.SchedulerService/CancelTasks": _NONE,
    "/parlmesh.v1.SchedulerService/ExplainTask": _READER,
    "/parlmesh.v1.SchedulerService/GetStatistics": _READER,
    "/parlmesh.v1.SchedulerService/GetTask": _READER,
    "/parlmesh.v1.SchedulerService/GetTrace": _READER,
    "/parlmesh.v1.SchedulerService/ListActors": _READER,
    "/parlmesh.v1.SchedulerService/ListTasks": _READER,
    "/parlmesh.v1.SchedulerService/RebalanceTasks": _NONE,
    "/parlmesh.v1.SchedulerService/SubmitTaskStream": _NONE,
    "/parlmesh.v1.SchedulerService/SubmitTasks": _NONE,
    "/parlmesh.v1.SchedulerService/UpdateActors": _NONE,
    "/parlmesh.v1.SchedulerService/WatchTasks": _READER,
    "/parlmesh.v1.TrainingService/CreateTraining": _NONE,
    "/parlmesh.v1.TrainingService/GetTraining": _BOTH,
    "/parlmesh.v1.TrainingService/ListTrainings": _BOTH,
    "/parlmesh.v1.TrainingService/PauseTraining": _NONE,
    "/parlmesh.v1.TrainingService/ResumeTraining": _NONE,
    "/parlmesh.v1.TrainingService/StartTraining": _NONE,
    "/parlmesh.v1.TrainingService/StopTraining": _NONE,
    "/parlmesh.v1.TrainingService/WatchTraining": _READER,
}


NAMESPACED_METHODS = OPEN_METHODS | {
    f"/parlmesh.v1.{method}"
    for method in (
        "BlobService/GetBlob",
        "BlobService/HoldBlobs",
        "BlobService/PutBlob",
        "SchedulerService/CancelTasks",
        "SchedulerService/ExplainTask",
        "SchedulerService/GetTask",
        "SchedulerService/ListTasks",
        "SchedulerService/SubmitTaskStream",
        "SchedulerService/SubmitTasks",
        "SchedulerService/WatchTasks",
    )
}
"""The methods that an identity of a namespace may call, within its role: those on its namespace's tasks and arrays."""


def roles_for(method: str) -> frozenset[Role]:
    """The roles that may call the method; a method without a row is for operators only."""
    return ROLES_BY_METHOD.get(method, _NONE) | {Role.OPERATOR}
