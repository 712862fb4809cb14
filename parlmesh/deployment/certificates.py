"""The certificates of a fleet, as files of `parlmesh certs` and as cert-manager objects."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .jobset import batch_hosts
from .kubernetes import Object
from .settings import DeploySettings

DAYS = 90
SERVERS = ("scheduler", "learner", "relay")


@dataclass(frozen=True)
class Wanted:
    """One certificate: its file name, its hosts, and the role it proves."""

    name: str
    hosts: tuple[str, ...] = ()
    role: str = ""


def wanted(settings: DeploySettings) -> list[Wanted]:
    """The certificates of the servers, with all their names, and of each actor."""
    servers = []
    for service, role, host in (
        ("scheduler", "", settings.scheduler_host),
        ("learner", "operator", settings.learner_host),
        ("relay", "reader", settings.relay_host),
    ):
        named = f"{settings.name}-{service}"
        inside = (named, f"{named}.{settings.namespace}.svc", f"{named}.{settings.namespace}.svc.cluster.local")
        servers.append(Wanted(service, (service, host, *inside, *_batch_host(settings, service), "localhost"), role))
    return [*servers, *(Wanted(name, role="actor") for name in [*actor_names(settings), f"{settings.name}-batch"])]


def _batch_host(settings: DeploySettings, service: str) -> list[str]:
    """The server's name in a JobSet, if it has one."""
    found = batch_hosts(settings).get(service)
    return [found] if found else []


def actor_names(settings: DeploySettings) -> list[str]:
    """Names of the actors, the same as those of their Kubernetes pods."""
    return [f"{settings.name}-actors-{index}" for index in range(settings.most_actors)]


def write_certificates(settings: DeploySettings, folder: Path) -> list[Path]:
    """Writes the missing files: the authority, the certificates, and an operator's token."""
    from parlmesh.security.identity import role_named
    from parlmesh.security.pem_files import write_authority, write_certificate
    from parlmesh.security.tokens import TOKENS_FILE, write_token

    written: list[Path] = []
    if not (folder / "ca.key").exists():
        written += write_authority(folder, name=f"{settings.name}-ca", days=3650, force=False)
    for each in wanted(settings):
        if (folder / f"{each.name}.crt").exists():
            continue
        role = role_named(each.role) if each.role else None
        written += write_certificate(folder, each.name, role=role, hosts=each.hosts, days=DAYS, force=False)
    if not (folder / "operator.token").exists():
        token, _ = write_token(folder, "operator", role_named("operator"), force=False)
        written += [token, folder / TOKENS_FILE]
    return written


def secrets(settings: DeploySettings, folder: str) -> list[Object]:
    """Secrets of a kustomization: one for each part, with only the files it needs."""
    parts = {service: [service] for service in SERVERS}
    parts["actors"] = actor_names(settings)
    parts["batch"] = [f"{settings.name}-batch"]
    found = []
    for part, names in parts.items():
        files = [f"{folder}/ca.crt", *(f"{folder}/{name}.{end}" for name in names for end in ("crt", "key"))]
        if part in SERVERS:
            files.append(f"{folder}/tokens.yaml")
        if part == "batch":
            files.append(f"{folder}/operator.token")
        found.append({"name": f"{settings.name}-{part}", "files": files})
    return found


def cert_manager(settings: DeploySettings) -> list[Object]:
    """An authority in the namespace, and certificates that cert-manager renews when a third of their time is left."""
    found = [
        _object(settings, "Issuer", "self-signed", {"selfSigned": {}}),
        _object(
            settings,
            "Certificate",
            "authority",
            {
                "isCA": True,
                "commonName": f"{settings.name}-ca",
                "secretName": f"{settings.name}-authority",
                "duration": "87600h",
                "privateKey": {"algorithm": "ECDSA", "size": 256},
                "issuerRef": {"name": f"{settings.name}-self-signed", "kind": "Issuer"},
            },
        ),
        _object(settings, "Issuer", "fleet", {"ca": {"secretName": f"{settings.name}-authority"}}),
    ]
    for each in wanted(settings):
        spec: dict[str, Any] = {
            "secretName": f"{_prefixed(settings, each.name)}-tls",
            "commonName": each.name,
            "duration": f"{DAYS * 24}h",
            "renewBefore": f"{DAYS * 8}h",
            "privateKey": {"algorithm": "ECDSA", "size": 256, "encoding": "PKCS8", "rotationPolicy": "Always"},
            "usages": [
                "digital signature",
                *(["server auth"] if each.hosts else []),
                *(["client auth"] if each.role else []),
            ],
            "issuerRef": {"name": f"{settings.name}-fleet", "kind": "Issuer"},
        }
        if each.hosts:
            spec["dnsNames"] = list(each.hosts)
        if each.role:
            spec["uris"] = [f"spiffe://parlmesh/{each.role}/{each.name}"]
        found.append(_object(settings, "Certificate", each.name, spec))
    return found


def projected(settings: DeploySettings, component: str) -> Object:
    """The volume of a part, combined from cert-manager's secrets and one with the tokens."""
    names = [component] if component in SERVERS else actor_names(settings)
    sources: list[Object] = []
    for index, name in enumerate(names):
        items = [{"key": f"tls.{end}", "path": f"{name}.{end}"} for end in ("crt", "key")]
        if index == 0:
            items.append({"key": "ca.crt", "path": "ca.crt"})
        sources.append({"secret": {"name": f"{_prefixed(settings, name)}-tls", "items": items}})
    if component != "actors":
        sources.append({"secret": {"name": f"{settings.name}-tokens"}})
    return {"name": "certificates", "projected": {"defaultMode": 0o440, "sources": sources}}


def _prefixed(settings: DeploySettings, name: str) -> str:
    """Adds the fleet's name as a prefix; names of actors already have it."""
    return name if name.startswith(f"{settings.name}-") else f"{settings.name}-{name}"


def _object(settings: DeploySettings, kind: str, name: str, spec: Object) -> Object:
    metadata = {"name": _prefixed(settings, name), "namespace": settings.namespace}
    return {"apiVersion": "cert-manager.io/v1", "kind": kind, "metadata": metadata, "spec": spec}
