"""Metrics of a policy server; each service has its own names for them."""

from dataclasses import dataclass

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram


@dataclass(frozen=True, slots=True)
class DistributionMetrics:
    """Metrics by encoding."""

    encode_seconds: Histogram
    encoding_ratio: Gauge
    sent_bytes: Counter


def distribution_metrics(service: str, registry: CollectorRegistry = REGISTRY) -> DistributionMetrics:
    """The metrics of one service, such as `parlmesh_learner_policy_sent_bytes_total`; call it once per service."""
    return DistributionMetrics(
        encode_seconds=Histogram(
            f"parlmesh_{service}_policy_encode_seconds",
            "Time to encode and split one version, once for all its readers.",
            ["encoding"],
            buckets=(0.0001, 0.001, 0.005, 0.02, 0.1, 0.5, 2.0),
            registry=registry,
        ),
        encoding_ratio=Gauge(
            f"parlmesh_{service}_policy_encoding_ratio",
            "Bytes of the last encoded version over bytes sent for it.",
            ["encoding"],
            registry=registry,
        ),
        sent_bytes=Counter(
            f"parlmesh_{service}_policy_sent_bytes_total", "Bytes of policies sent.", ["encoding"], registry=registry
        ),
    )
