import hashlib
import json
import stat

import numpy as np

from learner.federation.noise_key import NOISE_KEY, NoiseKey
from learner.federation.rules.records import FederationState
from learner.federation.updates import update_aggregation
from parlmesh.federation.privacy import noise_stream

from .conftest import SIZE


def seed_in(path):
    """What whoever reads the file can make of it."""
    return hashlib.sha256(b"noise" + bytes.fromhex(json.loads(path.read_bytes())["key"])).digest()


def test_a_seed_is_the_same_until_its_version_is_written_down_and_never_again(tmp_path):
    path = tmp_path / NOISE_KEY
    first = NoiseKey(path).seed(1)
    assert NoiseKey(path).seed(1) == first == seed_in(path), "a round that is made again after a kill"
    NoiseKey(path).forget(1)
    assert first not in (seed_in(path), NoiseKey(path).seed(2))
    assert NoiseKey(path).seed(1) != first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_the_noise_of_published_versions_is_in_no_file(bench, tmp_path, monkeypatch):
    seeds, drawn = [], noise_stream

    def noted(seed):
        seeds.append(seed)
        return drawn(seed)

    monkeypatch.setattr(update_aggregation, "noise_stream", noted)
    federation = await bench.start(rounds=2, privacy={"mode": "central", "noise_multiplier": 3.0})
    folder = tmp_path / "federations" / "f"
    first = json.loads((folder / NOISE_KEY).read_bytes())["key"]
    for assignment in (await bench.assignments(federation, 1)).values():
        await bench.submit(assignment, np.ones(SIZE))
    await bench.assignments(federation, 2)
    # A version is published a moment before its key is replaced.
    await bench.until(lambda: seed_in(folder / NOISE_KEY) not in seeds)
    assert seeds == [hashlib.sha256(b"noise" + bytes.fromhex(first)).digest()]
    next_key = json.loads((folder / NOISE_KEY).read_bytes())["key"]
    for file in (file for file in folder.rglob("*") if file.is_file()):
        content = file.read_bytes()
        for secret in (first, seeds[0].hex(), *([] if file.name == NOISE_KEY else [next_key])):
            assert secret.encode() not in content, file
            assert bytes.fromhex(secret) not in content, file
    await bench.finish(federation, lambda node, version: np.ones(SIZE))
    assert federation.core.state is FederationState.FINISHED
    assert len(set(seeds)) == 2

    def is_lost():
        try:
            return seed_in(folder / NOISE_KEY) not in seeds
        except FileNotFoundError:
            # One that has ended draws no noise any more.
            return True

    await bench.until(is_lost)
