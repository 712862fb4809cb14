"""The RPC metrics every server exports. Labels are bounded: methods the server does not have are "other"."""

from prometheus_client import Counter, Histogram

REQUESTS = Counter(
    "parlmesh_rpc_requests_total",
    "RPCs ended, by method and status code.",
    ["method", "code"],
)
DURATION = Histogram(
    "parlmesh_rpc_duration_seconds",
    "Time from the request to the answer of unary RPCs.",
    ["method"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
REFUSED = Counter(
    "parlmesh_rpc_refused_total",
    "RPCs refused before the service saw them, by reason.",
    ["reason"],
)
# Exported from the start, because a rate misses the step from no series to the first value.
for _reason in (
    *("NO_CREDENTIAL", "UNKNOWN_TOKEN", "MALFORMED_CREDENTIAL", "EXPIRED_CREDENTIAL", "ROLE_NOT_ALLOWED"),
    *("UNTRUSTED_CERTIFICATE", "EXPIRED_CERTIFICATE", "REVOKED_CERTIFICATE", "WRONG_AUDIENCE", "WRONG_SIGNATURE"),
):
    REFUSED.labels(_reason.lower())
PACED = Counter(
    "parlmesh_rpc_paced_total",
    "Calls and messages of streams that waited because their caller had taken more than its share.",
)

OTHER = "other"
