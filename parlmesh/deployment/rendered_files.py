"""Renders settings to files, for `parlmesh deploy render`; `deploy/` holds the files for the defaults."""

from collections.abc import Callable, Mapping
from pathlib import Path

from parlmesh.errors import AlreadyExists, InvalidInput

from . import compose, grafana, helm, kustomize, prometheus, rayjob, slurm, systemd
from .certificates import write_certificates
from .settings import DeploySettings

Files = Mapping[str, str]

# Kinds by folder below the output folder.
TARGETS: Mapping[str, Callable[[DeploySettings], Files]] = {
    "compose": compose.files,
    "grafana": grafana.files,
    "helm/parlmesh": helm.files,
    "kubernetes": kustomize.files,
    "prometheus": prometheus.files,
    "ray": rayjob.files,
    "slurm": slurm.files,
    "systemd": systemd.files,
}
# Where each kind expects certificates.
_CERTIFICATES = {
    "compose": ("certificates",),
    "kubernetes": ("overlays/fleet/certificates", "overlays/cert-manager/certificates"),
    "systemd": ("certificates",),
}


def names() -> list[str]:
    """The kinds that can be rendered."""
    return [target.partition("/")[0] for target in TARGETS]


def render(name: str, settings: DeploySettings) -> dict[str, str]:
    """All files of a kind, by path below the output folder."""
    for target, files in TARGETS.items():
        if target.partition("/")[0] == name:
            return {f"{target}/{path}": text for path, text in files(settings).items()}
    raise InvalidInput(f'"{name}" cannot be rendered; the kinds are {", ".join(names())}')


def write(name: str, settings: DeploySettings, folder: Path, *, certificates: bool, force: bool) -> list[Path]:
    """Writes all files, or none when one exists and `force` is off."""
    files = {folder / path: text for path, text in render(name, settings).items()}
    existing = [path for path in files if path.exists()]
    if existing and not force:
        raise AlreadyExists(f"{existing[0]} exists; --force replaces it")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    written = list(files)
    if certificates and settings.secure and name in _CERTIFICATES:
        first, *others = (folder / name / where for where in _CERTIFICATES[name])
        written += write_certificates(settings, first)
        for other in others:
            other.mkdir(parents=True, exist_ok=True)
            (other / "tokens.yaml").write_bytes((first / "tokens.yaml").read_bytes())
    return written
