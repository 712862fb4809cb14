"""The savings and costs of the policy encodings, on a 4 MB policy and the version after a typical update with Adam."""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from parlmesh.policies import PolicySpec, pack_policy
from parlmesh.policies.policy_compression import Encoding, decode, encode
from parlmesh.types import ActionSpec

SPEC = PolicySpec(observation_shape=(64,), action=ActionSpec("discrete", sizes=(8,)), hidden=(960, 960))
# Adam moves every weight by about its step size in each of the minibatches of an update.
STEP_SIZE, GRADIENT_STEPS = 3e-4, 32
ENCODINGS: tuple[Encoding, ...] = ("zstd", "bfloat16", "delta")


def main(repeats: int) -> dict[str, Any]:
    old, new = versions(np.random.default_rng(0))
    found: dict[str, Any] = {"bytes": len(new)}
    for encoding in ENCODINGS:
        sent = encode(encoding, new, old)
        got = decode(encoding, sent, len(new), old)
        assert encoding == "bfloat16" or got == new
        found[f"{encoding}_ratio"] = len(new) / len(sent)
        found[f"{encoding}_encode_ms"] = timed(partial(encode, encoding, new, old), repeats)
        found[f"{encoding}_decode_ms"] = timed(partial(decode, encoding, sent, len(new), old), repeats)
    return found


def versions(rng: np.random.Generator) -> tuple[bytes, bytes]:
    """Initial weights, as if orthogonal, and the same after an update."""
    sizes = SPEC.layer_sizes
    before, after = {}, {}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        weight = rng.normal(0, inputs**-0.5, (outputs, inputs)).astype(np.float32)
        moved = STEP_SIZE * rng.normal(size=(GRADIENT_STEPS, *weight.shape)).sum(axis=0)
        before[f"policy.{layer}.weight"] = weight
        after[f"policy.{layer}.weight"] = (weight + moved).astype(np.float32)
    return pack_policy(SPEC, before), pack_policy(SPEC, after)


def timed(work: Callable[[], object], repeats: int) -> float:
    """Milliseconds of processor time, the median."""
    values = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        values.append((time.process_time() - started) * 1e3)
    return statistics.median(values)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    print(json.dumps(main(parser.parse_args().repeats)))
