"""A certificate authority for one fleet in a Ray cluster, and a certificate for each of its processes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from parlmesh.security.extra import require_extra
from parlmesh.security.identity import role_named
from parlmesh.security.pem_files import write_authority, write_certificate
from parlmesh.security.tokens import write_token

if TYPE_CHECKING:
    from .fleet import RayFleetConfig

_DAYS = 90


def write_secrets(folder: Path, config: "RayFleetConfig", hosts: Sequence[str]) -> dict[str, dict[str, bytes]]:
    """Creates the files of each process; the authority and the operator's token stay in the local folder.

    The servers' certificates are valid for every current node, since Ray may place them on any.
    """
    require_extra()
    if not (folder / "ca.key").exists():
        write_authority(folder, name=f"{config.name}-ca", days=3650, force=False)
    if not (folder / "operator.token").exists():
        write_token(folder, "operator", role_named("operator"), force=False)
    servers = {"scheduler": None, "learner": role_named("operator")}
    for name, role in servers.items():
        write_certificate(folder, name, role=role, hosts=[*hosts, "localhost"], days=_DAYS, force=True)
    actors = [f"actor-{index}" for index in range(config.actors)]
    for name in actors:
        if not (folder / f"{name}.crt").exists():
            write_certificate(folder, name, role=role_named("actor"), hosts=(), days=_DAYS, force=False)
    return {name: _files(folder, name, tokens=name in servers) for name in (*servers, *actors)}


def _files(folder: Path, name: str, *, tokens: bool) -> dict[str, bytes]:
    """The files of one process, with only its own key."""
    names = ["ca.crt", f"{name}.crt", f"{name}.key", *(["tokens.yaml"] if tokens else [])]
    return {file: (folder / file).read_bytes() for file in names}
