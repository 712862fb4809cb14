import pytest
import yaml

from learner.config import TrainingConfig
from tools.bench import learning
from tools.bench.ground.measuring import Findings
from tools.bench.ground.places import ROOT

PRESETS = sorted((ROOT / "presets").glob("*.yaml"))


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_every_preset_is_a_valid_training_that_says_what_its_goal_is(path):
    content = yaml.safe_load(path.read_text())
    assert content.keys() - {"plugins"} == {"training"}
    assert "goal_return" in content["training"]
    TrainingConfig.model_validate(content["training"])


def test_every_preset_is_measured_and_held_to_its_own_goal():
    # Forced lag and parlmesh's own worlds and games are measured by separate scripts.
    plain = {path.stem for path in PRESETS if "id: parlmesh/" not in path.read_text() and "selfplay-" not in path.stem}
    assert plain - {"vtrace-cartpole"} == {entry.preset for entry in learning.ENTRIES}
    for entry in learning.ENTRIES:
        training = yaml.safe_load((ROOT / "presets" / f"{entry.preset}.yaml").read_text())["training"]
        # A preset without a goal is trained to the end of its budget.
        assert training["goal_return"] in (entry.mark, None), entry.preset


def test_only_what_is_named_is_run_so_many_times():
    plan = learning.plan(False, seeds=3, only=("q-taxi", "lag"), fleet=True)
    assert [each.name for each in plan[:3]] == ["q_taxi", "gae_lag_0", "gae_lag_1"]
    assert {each.runs for each in plan} == {3}
    assert len(plan) == 9
    assert "--fleet" in plan[0].arguments


def test_a_figure_belongs_to_the_preset_of_the_longest_name_that_fits():
    assert learning._measured("ppo_cartpole_recurrent_best_return", {"ppo_cartpole_recurrent"})
    assert not learning._measured("ppo_cartpole_recurrent_best_return", {"ppo_cartpole"})
    assert learning._measured("vtrace_lag_0_return", {"vtrace_lag_0", "vtrace_lag_4"})
    assert not learning._measured("gae_lag_8_loss", {"vtrace_lag_8"})


def test_the_worst_seed_counts_and_one_that_never_held_its_mark_is_no_figure():
    good = {"final_return": 480.0, "best_return": 500.0, "training_return": 490.0, "steps": 60_000}
    good["steps_to_mark"] = 40_000
    bad = {"final_return": 300.0, "best_return": 420.0, "training_return": 250.0, "steps": 150_000}
    findings = Findings(
        results={"dqn_cartpole": [good, bad], "ppo_cartpole": [good, {**good, "steps_to_mark": 50_000}]}
    )
    derived = learning.derived(findings)
    assert derived["dqn_cartpole_worst_best_return"] == 420.0
    assert derived["dqn_cartpole_worst_steps_to_mark"] is None
    assert derived["ppo_cartpole_worst_steps_to_mark"] == 50_000
    lines = learning.seed_lines(findings)
    assert "dqn-cartpole seed 1: last 300.0, best 420.0, training's end 250.0, mark not held of 150,000" in lines
    notes = {row.key: row.note for row in learning.rows(findings)}
    assert notes["dqn_cartpole_best_return"] == "1 of 2 seeds held 475; published: 500 after 50k (zoo)"


def test_lag_costs_what_is_missing_to_the_returns_without_it():
    findings = Findings(results={"gae_lag_0": [{"last_third": -80.0}], "vtrace_lag_4": [{"last_third": -88.0}]})
    assert learning.derived(findings)["vtrace_lag_4_loss"] == pytest.approx(0.1)
