"""The maximum request size of each method: most need far less than `listen.max_message_bytes`.

Larger requests are refused unparsed: a message of many small elements is many times as large once it is parsed.
"""

from collections.abc import Mapping

SMALL = 64 * 1024
"""The limit of every method that is not named here."""
SETTINGS = 1 << 20
NAMES = 4 << 20
"""10,000 ids and what surrounds them."""

CHUNK = (1 << 20) + SMALL
"""A mebibyte of a blob and what surrounds it."""

OTHER_SIZES: Mapping[str, int | None] = {
    "/parlmesh.v1.BlobService/HoldBlobs": NAMES,
    "/parlmesh.v1.BlobService/PutBlob": CHUNK,
    "/parlmesh.v1.ExperienceService/UploadTrajectories": None,
    "/parlmesh.v1.FederationService/StartFederation": SETTINGS,
    "/parlmesh.v1.FederationService/SubmitUpdate": None,
    "/parlmesh.v1.FederationService/SubmitUpdates": None,
    "/parlmesh.v1.FederationService/WatchFederatedModel": NAMES,
    "/parlmesh.v1.FleetService/Connect": None,
    "/parlmesh.v1.SchedulerService/CancelTasks": NAMES,
    "/parlmesh.v1.SchedulerService/SubmitTaskStream": None,
    "/parlmesh.v1.SchedulerService/SubmitTasks": None,
    "/parlmesh.v1.SchedulerService/UpdateActors": NAMES,
    "/parlmesh.v1.SchedulerService/WatchTasks": NAMES,
    "/parlmesh.v1.TrainingService/CreateTraining": SETTINGS,
}
"""By method; None = the server's own limit."""


def largest_request(method: str) -> int | None:
    """In bytes; None = the server's own limit."""
    return OTHER_SIZES.get(method, SMALL)
