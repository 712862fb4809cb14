"""The objects of a fleet as a kustomize base with overlays and components."""

from .certificates import cert_manager, projected, secrets
from .jobset import jobset
from .kubernetes import Object, Objects
from .settings import DeploySettings
from .yaml_files import dump, dump_all

VERSION = "kustomize.config.k8s.io/v1beta1"
CERTIFICATES = "certificates"


def files(settings: DeploySettings) -> dict[str, str]:
    """All files, by path."""
    objects = Objects(settings)
    base = objects.by_file()
    found = {f"base/{name}": dump_all(each) for name, each in base.items()}
    found["base/kustomization.yaml"] = _kustomization(resources=list(base))
    found["overlays/fleet/namespace.yaml"] = dump(objects.namespace())
    fleet: Object = {"resources": ["namespace.yaml", "../../base"]}
    if settings.secure:
        fleet["secretGenerator"] = secrets(settings, CERTIFICATES)
        # Names without a digest, so that renewed files reach the pods without a restart.
        fleet["generatorOptions"] = {"disableNameSuffixHash": True}
        fleet["namespace"] = settings.namespace
        found |= _renewing(settings, objects)
    components = [
        *(["../../components/autoscaling"] if settings.autoscaling else []),
        *(["../../components/monitoring"] if settings.pod_monitor else []),
    ]
    found["overlays/fleet/kustomization.yaml"] = _kustomization(
        **fleet, **({"components": components} if components else {})
    )
    found["components/autoscaling/autoscaler.yaml"] = dump(objects.autoscaler())
    found["components/autoscaling/kustomization.yaml"] = _component(resources=["autoscaler.yaml"])
    found["components/monitoring/pod-monitor.yaml"] = dump(objects.pod_monitor())
    found["components/monitoring/kustomization.yaml"] = _component(resources=["pod-monitor.yaml"])
    found["batch/jobset.yaml"] = dump_all(jobset(settings))
    return found


def _renewing(settings: DeploySettings, objects: Objects) -> dict[str, str]:
    """The overlay with certificates from cert-manager."""
    patches = []
    for component in ("scheduler", "learner", "relay", "actors"):
        volume = {**projected(settings, component), "secret": None}
        patch = {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": f"{settings.name}-{component}", "namespace": settings.namespace},
            "spec": {"template": {"spec": {"volumes": [volume]}}},
        }
        patches.append({"patch": dump(patch, header="")})
    tokens = {"name": f"{settings.name}-tokens", "files": [f"{CERTIFICATES}/tokens.yaml"]}
    return {
        "overlays/cert-manager/namespace.yaml": dump(objects.namespace()),
        "overlays/cert-manager/certificates.yaml": dump_all(cert_manager(settings)),
        "overlays/cert-manager/kustomization.yaml": _kustomization(
            namespace=settings.namespace,
            resources=["namespace.yaml", "certificates.yaml", "../../base"],
            secretGenerator=[tokens],
            generatorOptions={"disableNameSuffixHash": True},
            patches=patches,
        ),
    }


def _kustomization(**content: object) -> str:
    return dump({"apiVersion": VERSION, "kind": "Kustomization", **content})


def _component(**content: object) -> str:
    return dump({"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component", **content})
