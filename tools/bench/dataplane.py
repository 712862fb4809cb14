"""How fast trajectories reach the learner and policies the actors, beside bare gRPC streams of the same bytes."""

import sys
from pathlib import Path

# Run as a file, this folder would come first, and its scheduler.py would hide the package of that name.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tools.bench.ground.measuring import Findings, Measurement
from tools.bench.ground.options import Options, parse_options
from tools.bench.ground.report import Row
from tools.bench.ground.samples import ratio
from tools.bench.ground.session import measure, print_report

KNOWN_PEERS = ()
PACKAGES = ("parlmesh", "grpcio", "protobuf", "numpy", "uvloop", "zstandard")
# Environment steps in one message, of 64 environments: about 1 MB and 0.28 MB.
LARGE, SMALL = 448, 128

# key, label, measurement, key of its result
FIGURES = (
    ("upload_mb_per_second", "MB/s  trajectories of 1 MB, 2 processes, one host", "uploads", "upload_mb_per_second"),
    ("bare_stream_mb_per_second", "MB/s  the same bytes, bare stream", "uploads", "bare_stream_mb_per_second"),
    ("small_upload_mb_per_second", "MB/s  trajectories of 0.28 MB, one host", "small_uploads", "upload_mb_per_second"),
    ("small_bare_mb_per_second", "MB/s  the same bytes, bare stream", "small_uploads", "bare_stream_mb_per_second"),
    ("sent_mb_per_second", "MB/s  trajectories of 1 MB, sent", "sent", "upload_mb_per_second"),
    ("sent_bare_mb_per_second", "MB/s  the same bytes, bare stream", "sent", "bare_stream_mb_per_second"),
    ("small_sent_mb_per_second", "MB/s  trajectories of 0.28 MB, sent", "small_sent", "upload_mb_per_second"),
    ("small_sent_bare_mb_per_second", "MB/s  the same bytes, bare stream", "small_sent", "bare_stream_mb_per_second"),
    ("publish_8_readers_ms", "ms  policy of 4 MB to 8 readers", "publishing", "publish_ms"),
    ("bare_publish_ms", "ms  the same bytes, bare streams", "publishing", "bare_publish_ms"),
    ("zstd_ratio", "bytes of a policy over bytes sent  zstd", "encodings", "zstd_ratio"),
    ("zstd_encode_ms", "  ms to encode 4 MB, once for all readers", "encodings", "zstd_encode_ms"),
    ("zstd_decode_ms", "  ms to decode, each reader", "encodings", "zstd_decode_ms"),
    ("bfloat16_ratio", "bytes of a policy over bytes sent  bfloat16, lossy", "encodings", "bfloat16_ratio"),
    ("bfloat16_encode_ms", "  ms to encode 4 MB, once for all readers", "encodings", "bfloat16_encode_ms"),
    ("bfloat16_decode_ms", "  ms to decode, each reader", "encodings", "bfloat16_decode_ms"),
    ("delta_ratio", "bytes of a policy over bytes sent  delta", "encodings", "delta_ratio"),
    ("delta_encode_ms", "  ms to encode 4 MB, once for all readers", "encodings", "delta_encode_ms"),
    ("delta_decode_ms", "  ms to decode, each reader", "encodings", "delta_decode_ms"),
)


def plan(quick: bool) -> list[Measurement]:
    runs, seconds, turns = (1, "1", "5") if quick else (3, "1.5", "9")
    uploads = ("-m", "tools.bench.ours.dataplane.uploads", "--seconds", seconds, "--trajectory-steps")
    return [
        Measurement("uploads", (*uploads, str(LARGE)), runs, 120),
        Measurement("small_uploads", (*uploads, str(SMALL)), runs, 120),
        Measurement("sent", (*uploads, str(LARGE), "--sent"), runs, 120),
        Measurement("small_sent", (*uploads, str(SMALL), "--sent"), runs, 120),
        Measurement("encodings", ("-m", "tools.bench.ours.dataplane.encodings"), runs, 60),
        Measurement("publishing", ("-m", "tools.bench.ours.dataplane.publishing", "--turns", turns), runs, 180),
    ]


def rows(findings: Findings) -> list[Row]:
    return [
        Row(key, label, findings.samples(name, value), findings.reasons.get(name, ""))
        for key, label, name, value in FIGURES
    ]


def derived(findings: Findings) -> dict[str, float | None]:
    """Ratios of medians; ours over bare."""

    def over(name: str, ours: str, bare: str) -> float | None:
        return ratio(findings.samples(name, ours), findings.samples(name, bare))

    return {
        "upload_over_bare": over("uploads", "upload_mb_per_second", "bare_stream_mb_per_second"),
        "small_upload_over_bare": over("small_uploads", "upload_mb_per_second", "bare_stream_mb_per_second"),
        "sent_over_bare": over("sent", "upload_mb_per_second", "bare_stream_mb_per_second"),
        "small_sent_over_bare": over("small_sent", "upload_mb_per_second", "bare_stream_mb_per_second"),
        "publish_over_bare": over("publishing", "publish_ms", "bare_publish_ms"),
    }


def main(options: Options) -> None:
    findings = measure(plan(options.quick), options)
    print_report(rows(findings), derived(findings), findings, options, packages=PACKAGES)


if __name__ == "__main__":
    main(parse_options(__doc__, known=KNOWN_PEERS, usual=KNOWN_PEERS))
