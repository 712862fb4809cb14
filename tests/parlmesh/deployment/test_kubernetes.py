"""Manifests keep to Kubernetes' schema, and Helm renders to the objects that kustomize has."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from parlmesh.deployment.kustomize import CERTIFICATES
from parlmesh.deployment.rendered_files import write
from parlmesh.deployment.settings import DeploySettings, camel
from tests.parlmesh.deployment.conftest import Run

VERSION = "1.37"
OTHER = {"image": "registry.example/parlmesh:9", "actors": 3, "most_actors": 20, "slots": 2, "step_budget": 12_000_000}
# Custom resources, whose schemas are not available here.
CUSTOM = ("cert-manager.io/", "monitoring.coreos.com/", "jobset.x-k8s.io/", "kustomize.config.k8s.io/")


def rendered(settings: DeploySettings, folder: Path) -> Path:
    for kind in ("kubernetes", "helm"):
        write(kind, settings, folder, certificates=kind == "kubernetes", force=False)
    return folder


def documents(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each]


def by_name(objects: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Files inside a configuration are compared by content, not by quoting."""
    for each in objects:
        if each["kind"] == "ConfigMap":
            each["data"] = {name: yaml.safe_load(text) for name, text in each["data"].items()}
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def kustomized(kubectl: Run, folder: Path) -> list[dict[str, Any]]:
    answer = kubectl("kustomize", folder)
    assert (answer.returncode, answer.stderr) == (0, "")
    return documents(answer.stdout)


@pytest.mark.parametrize("security", ["certificates", "none"])
def test_every_object_keeps_to_the_schema(security: str, tmp_path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    rendered(DeploySettings.model_validate({"security": security}), tmp_path)
    checked = 0
    for file in (tmp_path / "kubernetes").rglob("*.yaml"):
        for each in documents(file.read_text()) if file.name != "tokens.yaml" else []:
            if not each["apiVersion"].startswith(CUSTOM):
                validate(each, VERSION, strict=True)
                checked += 1
    assert checked >= 14


def test_the_schema_check_would_find_a_mistake() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"prots": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, VERSION, strict=True)


def test_overlays_build(tool: Callable[[str], Run], tmp_path: Path) -> None:
    kubectl = tool("kubectl")
    folder = rendered(DeploySettings(autoscaling=True, pod_monitor=True), tmp_path) / "kubernetes"
    fleet = by_name(kustomized(kubectl, folder / "overlays/fleet"))
    assert {"Namespace", "Secret", "StatefulSet", "HorizontalPodAutoscaler", "PodMonitor"} <= {
        kind for kind, _ in fleet
    }
    secret = fleet["Secret", "parlmesh-scheduler"]
    assert set(secret["data"]) == {"ca.crt", "scheduler.crt", "scheduler.key", "tokens.yaml"}
    renewing = by_name(kustomized(kubectl, folder / "overlays/cert-manager"))
    (volume,) = [
        each
        for each in renewing["StatefulSet", "parlmesh-learner"]["spec"]["template"]["spec"]["volumes"]
        if each["name"] == CERTIFICATES
    ]
    assert "secret" not in volume
    names = {source["secret"]["name"] for source in volume["projected"]["sources"]}
    made = {each["spec"]["secretName"] for (kind, _), each in renewing.items() if kind == "Certificate"}
    assert names - {"parlmesh-tokens"} <= made


@pytest.mark.parametrize(
    "values", [{}, OTHER, {"autoscaling": True, "pod_monitor": True}], ids=["defaults", "others", "all"]
)
def test_helm_and_kustomize_render_to_the_same_objects(
    values: dict[str, Any], tool: Callable[[str], Run], tmp_path: Path
) -> None:
    kubectl, helm = tool("kubectl"), tool("helm")
    settings = DeploySettings.model_validate(values)
    ours = rendered(settings, tmp_path / "ours") / "kubernetes"
    chart = rendered(DeploySettings(), tmp_path / "chart") / "helm/parlmesh"
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({camel(name): value for name, value in values.items()}))
    answer = helm("template", "parlmesh", chart, "--namespace", "parlmesh", "--values", file)
    assert answer.returncode == 0, answer.stderr
    expected = by_name(kustomized(kubectl, ours / "overlays/fleet"))
    # Part of the installation rather than of the chart.
    expected = {key: each for key, each in expected.items() if key[0] not in ("Namespace", "Secret")}
    assert by_name(documents(answer.stdout)) == expected


@pytest.mark.parametrize("value", ["actors=0", "imagee=x", "learnerMemory=much"])
def test_helm_refuses_impossible_values(value: str, tool: Callable[[str], Run], tmp_path: Path) -> None:
    helm = tool("helm")
    chart = rendered(DeploySettings(), tmp_path) / "helm/parlmesh"
    answer = helm("template", "parlmesh", chart, "--set", value)
    assert answer.returncode != 0
    assert value.partition("=")[0] in answer.stderr
