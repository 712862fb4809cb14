"""The rendered files are those in `deploy/`, and the services accept them."""

import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from actor.config import ActorConfig
from learner.config import LearnerConfig
from parlmesh.cli.__main__ import app
from parlmesh.config import Config, load
from parlmesh.deployment.certificates import wanted
from parlmesh.deployment.rendered_files import names, render
from parlmesh.deployment.settings import DeploySettings
from parlmesh.relay.config import RelayConfig
from scheduler.config import SchedulerConfig

ROOT = Path(__file__).parents[3]
BY_HAND = {"Containerfile", "README.md"}
MODELS: dict[str, type[Config]] = {
    "scheduler": SchedulerConfig,
    "learner": LearnerConfig,
    "relay": RelayConfig,
    "actor": ActorConfig,
}


def test_the_folder_deploy_is_what_the_defaults_render_to() -> None:
    rendered = {path: text for name in names() for path, text in render(name, DeploySettings()).items()}
    folder = ROOT / "deploy"
    kept = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()} - BY_HAND
    assert kept == set(rendered), "run: parlmesh deploy render all --out deploy --force"
    stale = [path for path, text in rendered.items() if (folder / path).read_text() != text]
    assert stale == [], "run: parlmesh deploy render all --out deploy --force"


def configurations(settings: DeploySettings) -> list[tuple[str, str]]:
    found = []
    for kind in ("compose", "systemd"):
        files = render(kind, settings)
        found += [(service, files[f"{kind}/{service}.yaml"]) for service in MODELS]
    objects = yaml.safe_load_all(render("kubernetes", settings)["kubernetes/base/configuration.yaml"])
    (data,) = [each["data"] for each in objects if each["kind"] == "ConfigMap"]
    return found + [(service, data[f"{service}.yaml"]) for service in MODELS]


@pytest.mark.parametrize("security", ["certificates", "none"])
def test_every_service_accepts_its_configuration(security: str, tmp_path: Path) -> None:
    settings = DeploySettings.model_validate({"security": security, "environment": "Acrobot-v1", "slots": 3})
    found = configurations(settings)
    assert len(found) == 12
    for service, text in found:
        file = tmp_path / "configuration.yaml"
        file.write_text(text)
        load(MODELS[service], file=file, prefix="PARLMESH_TEST")


def test_render_fills_in_what_it_is_told_and_makes_certificates(tmp_path: Path) -> None:
    command = ["deploy", "render", "kubernetes", "--out", str(tmp_path), "--certificates"]
    settings = ["image=registry.example/fleet:7", "name=north", "most_actors=3", "actors=3"]
    result = CliRunner().invoke(app, command + [part for each in settings for part in ("--set", each)])
    assert result.exit_code == 0, result.output
    actors = (tmp_path / "kubernetes/base/actors.yaml").read_text()
    assert "registry.example/fleet:7" in actors
    assert "north-actors" in actors
    folder = tmp_path / "kubernetes/overlays/fleet/certificates"
    assert {f"{each.name}.crt" for each in wanted(DeploySettings(name="north", most_actors=3))} < {
        file.name for file in folder.iterdir()
    }
    again = CliRunner().invoke(app, command)
    assert (again.exit_code, "exists; --force replaces it" in str(again.exception)) == (1, True)


@pytest.mark.parametrize(
    ("assignment", "sentence"), [("actors=0", "actors"), ("name=North", "name"), ("imagee=x", "image")]
)
def test_an_impossible_setting_is_refused_by_name(assignment: str, sentence: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["deploy", "render", "all", "--out", str(out), "--set", assignment])
    assert result.exit_code != 0
    assert sentence in str(result.exception)
    assert not out.exists()


def test_the_ranks_of_a_learner_find_each_other() -> None:
    settings = DeploySettings(learner_processes=3, name="lab", actors=1)
    _, jobset = yaml.safe_load_all(render("kubernetes", settings)["kubernetes/batch/jobset.yaml"])
    jobs = {job["name"]: job["template"]["spec"] for job in jobset["spec"]["replicatedJobs"]}
    pods = {name: job["template"]["spec"]["containers"][0] for name, job in jobs.items()}
    variables = {name: {each["name"]: each["value"] for each in pod["env"]} for name, pod in pods.items()}
    together = {"MASTER_ADDR": "lab-batch-learner-0-0.lab-batch", "MASTER_PORT": "29500", "WORLD_SIZE": "3"}
    assert variables["learner"] == {**together, "RANK": "0"}
    assert variables["ranks"] == together
    assert jobs["ranks"]["completions"] == 2
    assert "JOB_COMPLETION_INDEX + 1" in pods["ranks"]["command"][2]
    # The claim of the run's files can be mounted once.
    assert "persistentVolumeClaim" not in str(jobs["ranks"])
    script = render("slurm", settings)["slurm/fleet.sbatch"]
    assert "WORLD_SIZE=3" in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
