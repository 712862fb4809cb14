import json
import stat

import pytest
from pydantic import ValidationError

from actor.config import PrivacyFloorConfig
from actor.federation.privacy_floor import PrivacyFloor
from parlmesh.errors import FailedPrecondition, Unavailable
from parlmesh.federation.privacy import epsilon, releases_within


def test_without_floors_a_node_does_as_it_is_asked():
    floor = PrivacyFloor(PrivacyFloorConfig())
    floor.check_fit(0.0, 0.0)
    floor.check_evaluation()
    floor.spend("a", 1.0)


@pytest.mark.parametrize(
    ("clip_norm", "noise", "sentence"),
    [
        (1.0, 0.0, "at least 2 .*, the federation's is 0"),
        (1.0, 1.99, "at least 2 .*, the federation's is 1.99"),
        (5.1, 2.0, "clip_norm up to 5 .*, the federation's is 5.1"),
        (0.0, 2.0, "clip_norm up to 5 .*, the federation's is 0"),
    ],
)
def test_a_federation_that_asks_for_more_than_a_node_gives_is_refused(clip_norm, noise, sentence):
    floor = PrivacyFloor(PrivacyFloorConfig(min_noise_multiplier=2.0, max_clip_norm=5.0))
    floor.check_fit(5.0, 2.0)
    with pytest.raises(FailedPrecondition, match=sentence):
        floor.check_fit(clip_norm, noise)
    with pytest.raises(FailedPrecondition, match="evaluates no models"):
        floor.check_evaluation()
    PrivacyFloor(PrivacyFloorConfig(min_noise_multiplier=2.0, evaluate=True)).check_evaluation()


def test_a_node_can_ask_for_secure_sums_of_many():
    floor = PrivacyFloor(PrivacyFloorConfig(min_summed_nodes=6))
    floor.check_sum(6)
    with pytest.raises(FailedPrecondition, match=r"at least 6 nodes .*; the federation sums at least 5"):
        floor.check_sum(5)
    with pytest.raises(FailedPrecondition, match="the federation wants them unmasked"):
        floor.check_sum(1)
    PrivacyFloor(PrivacyFloorConfig()).check_sum(1)


def test_noise_that_is_a_part_of_a_sums_is_accounted_as_such(tmp_path):
    config = PrivacyFloorConfig(epsilon_budget=8.0, ledger=tmp_path / "ledger.json")
    allowed = releases_within(4.0, 1e-5, 8.0, 100, in_parts=True)
    for _ in range(allowed):
        PrivacyFloor(config).spend("a", 4.0, in_parts=True)
    with pytest.raises(FailedPrecondition, match="would bring its epsilon to"):
        PrivacyFloor(config).spend("a", 4.0, in_parts=True)


def test_a_budget_holds_over_restarts_and_federations_and_is_never_passed(tmp_path):
    config = PrivacyFloorConfig(epsilon_budget=8.0, ledger=tmp_path / "ledger.json")
    allowed = releases_within(4.0, 1e-5, 8.0, 100)
    for _ in range(allowed):
        PrivacyFloor(config).spend("a", 4.0)
    for _ in range(3):
        with pytest.raises(FailedPrecondition, match="would bring its epsilon to") as caught:
            PrivacyFloor(config).spend("a", 4.0)
        assert caught.value.reason == "PRIVACY_BUDGET"
    ledger = config.ledger
    assert ledger is not None
    spent = json.loads(ledger.read_text())["a"]
    assert spent == pytest.approx(allowed * (2.0 / 4.0) ** 2)
    assert epsilon(4.0, allowed, 1e-5) <= 8.0 < epsilon(4.0, allowed + 1, 1e-5)
    # Another node has its own, and much noise still fits beside what was given away.
    PrivacyFloor(config).spend("b", 4.0)
    PrivacyFloor(config).spend("a", 1_000.0)
    assert stat.S_IMODE(ledger.stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": "x"}', '{"a": -1}', '{"a": NaN}', "[" * 100_000])
def test_a_ledger_that_cannot_be_read_or_written_stops_all_sending(tmp_path, text):
    ledger = tmp_path / "ledger.json"
    ledger.write_text(text)
    with pytest.raises(FailedPrecondition, match="cannot be read; nothing is sent"):
        PrivacyFloor(PrivacyFloorConfig(epsilon_budget=8.0, ledger=ledger)).spend("a", 4.0)
    nowhere = PrivacyFloorConfig(epsilon_budget=8.0, ledger=tmp_path / "no" / "ledger.json")
    with pytest.raises(Unavailable, match="cannot be written"):
        PrivacyFloor(nowhere).spend("a", 4.0)


def test_a_budget_without_a_ledger_is_refused():
    with pytest.raises(ValidationError, match="needs a ledger"):
        PrivacyFloorConfig(epsilon_budget=1.0)
