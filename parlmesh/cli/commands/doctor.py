"""`parlmesh doctor`: lists what could keep a fleet from running here, one line each with advice. Changes nothing."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parlmesh.addresses import split_addresses
from parlmesh.cli.commands.store import PasswordFile
from parlmesh.cli.connection import (
    LEARNER_DEFAULT,
    SCHEDULER_DEFAULT,
    AsJson,
    LearnerAddress,
    SchedulerAddress,
    run,
    security_of,
)
from parlmesh.errors import FleetError
from parlmesh.harmless_text import visible

if TYPE_CHECKING:
    from parlmesh.security import SecurityConfig

OLDEST_PYTHON = (3, 11)
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "base": ("grpcio", "grpcio-health-checking", "grpcio-reflection", "protobuf", "numpy", "pydantic", "pyyaml"),
    "cli": ("typer", "rich"),
    "actor": ("gymnasium", "safetensors"),
    "learner": ("torch", "gymnasium", "safetensors", "tensorboard", "matplotlib"),
    "security": ("cryptography",),
}
METRICS_PORTS = (9101, 9102, 9103, 9104)
PROBE_SECONDS = 2.0
SERVES, IDLE = "serves at", "but does not serve"


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    said: str
    advice: str = ""
    """What to do; empty when nothing is wrong."""


def doctor(
    context: typer.Context,
    scheduler: SchedulerAddress = SCHEDULER_DEFAULT,
    learner: LearnerAddress = LEARNER_DEFAULT,
    store: Annotated[
        str,
        typer.Option(
            "--store",
            metavar="URL",
            envvar="PARLMESH_SCHEDULER__STORE__URL",
            help="the scheduler's store.url, if it uses PostgreSQL",
        ),
    ] = "",
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Check Python, packages, machine, ports, addresses, TLS files and store; exit code 1 when something is wrong."""
    security = security_of(context)
    findings = [check_python(), *check_packages(), check_stubs(), check_machine(), check_folder(Path.cwd())]
    findings += check_tls(security)
    findings += run(check_schedulers(scheduler, security))
    findings.append(run(check_service("learner", learner, security)))
    if store:
        findings.append(check_store(store, password_file))
    findings += [check_metrics_ports()]
    for finding in findings:
        if as_json:
            typer.echo(json.dumps(asdict(finding) | {"ok": not finding.advice}))
            continue
        mark = typer.style("✗", fg="red") if finding.advice else typer.style("✓", fg="green")
        line = f"{mark} {finding.name:<18} {visible(finding.said)}"
        typer.echo(f"{line}; {visible(finding.advice)}" if finding.advice else line)
    if any(finding.advice for finding in findings):
        raise typer.Exit(1)


def check_python(version: tuple[int, int] = sys.version_info[:2]) -> Finding:
    """Checks the interpreter: older ones lack TaskGroup and asyncio.timeout."""
    said = ".".join(str(part) for part in version)
    if version < OLDEST_PYTHON:
        return Finding("python", said, "install Python 3.11 or newer and make the venv again")
    return Finding("python", f"{said} at {sys.executable}")


def check_packages(version_of: Callable[[str], str] | None = None) -> Iterator[Finding]:
    """Checks the packages of every extra."""
    from importlib import metadata

    look = version_of or metadata.version
    for extra, names in PACKAGES.items():
        found, missing = [], []
        for name in names:
            try:
                found.append(f"{name} {look(name)}")
            except metadata.PackageNotFoundError:
                missing.append(name)
        label = f"packages: {extra}"
        if missing:
            wanted = "parlmesh" if extra == "base" else f"'parlmesh[{extra}]'"
            yield Finding(label, f"missing {', '.join(missing)}", f"pip install {wanted}")
        else:
            yield Finding(label, ", ".join(found))


def check_stubs() -> Finding:
    """Checks that the generated code loads: it refuses a gRPC or protobuf older than its generator."""
    try:
        from parlmesh.v1 import scheduler_service_pb2_grpc  # noqa: F401 - the import is the check
    except Exception as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Finding("contract", first_line, "pip install --upgrade grpcio protobuf, or `make protos` in the sources")
    return Finding("contract", "parlmesh.v1 loads")


def check_machine() -> Finding:
    """Checks cores and memory; one core is enough, only slower."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    if memory < 1:
        return Finding("machine", f"{memory:.1f} GiB of memory", "a learner with torch needs about 1 GiB")
    return Finding("machine", f"{cores} cores, {memory:.1f} GiB of memory")


def check_folder(folder: Path) -> Finding:
    """Checks that runs can be written below the current folder."""
    if not os.access(folder, os.W_OK):
        return Finding("runs", f"{folder} cannot be written", "go to another folder or give --runs-dir to `up`")
    return Finding("runs", f"go to {folder / 'runs'}")


def check_tls(security: "SecurityConfig") -> Iterator[Finding]:
    """Checks that the files exist and are PEM, and that the key belongs to the certificate."""
    import ssl

    if security.ca is security.certificate is security.token_file is None:
        yield Finding("tls", "not used")
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if security.ca is not None:
        yield _loaded("tls: ca", security.ca, lambda: context.load_verify_locations(security.ca))
    if security.certificate is not None and security.key is not None:
        certificate, key = security.certificate, security.key
        yield _loaded("tls: certificate", certificate, lambda: context.load_cert_chain(certificate, key))
    if security.token_file is not None:
        yield _loaded("token", security.token_file, security.token_file.read_text)


def _loaded(name: str, file: Path, load: Callable[[], object]) -> Finding:
    try:
        load()
    except OSError as error:
        return Finding(
            name, f"{file}: {error.strerror or error}", "make new ones with `parlmesh certs`, or correct the path"
        )
    return Finding(name, str(file))


async def check_schedulers(addresses: str, security: "SecurityConfig") -> list[Finding]:
    """Checks each address of a list; if one serves, idle ones are standbys."""
    found = [await check_service("scheduler", address, security) for address in split_addresses(addresses)]
    if not any(finding.said.startswith(SERVES) for finding in found):
        return found
    return [
        Finding(finding.name, finding.said.replace(IDLE, "and stands by")) if IDLE in finding.said else finding
        for finding in found
    ]


def check_store(url: str, password_file: Path | None) -> Finding:
    """Checks how durable a commit is in the database, and so what its failover can lose."""
    from parlmesh.cli.commands.store import opened
    from parlmesh.postgres.commit_guarantees import ask

    try:
        with opened(url, password_file) as database:
            promises = ask(database)
    except FleetError as error:
        return Finding("store", error.message, "correct the address and the password, or start the database")
    return Finding("store", promises.said(), promises.advice())


async def check_service(name: str, address: str, security: "SecurityConfig") -> Finding:
    """Checks that the service answers there, or that the port is free."""
    import grpc
    import grpc.aio
    from grpc_health.v1 import health_pb2

    from parlmesh.rpc import open_channel

    try:
        opened = open_channel(address, security)
    except FleetError as error:
        return Finding(name, error.message, "correct the address and the TLS options")
    async with opened as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = await check(health_pb2.HealthCheckRequest(), timeout=PROBE_SECONDS)
        except grpc.aio.AioRpcError as error:
            return _unreached(name, address, error.code())
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        return Finding(name, f"answers at {address} {IDLE}", "look into its log: it is starting or stopping")
    return Finding(name, f"{SERVES} {address}")


def _unreached(name: str, address: str, code: object) -> Finding:
    host, _, port = address.rpartition(":")
    if host in ("127.0.0.1", "localhost", "::1") and port.isdigit() and port_is_free(int(port)):
        return Finding(name, f"none at {address}, the port is free for one")
    word = getattr(code, "name", str(code))
    return Finding(name, f"no answer at {address} ({word})", f"start it, or correct --{name} and the TLS options")


def check_metrics_ports() -> Finding:
    """Checks the Prometheus ports of a fleet with two actors."""
    taken = [str(port) for port in METRICS_PORTS if not port_is_free(port)]
    if taken:
        return Finding("metrics ports", f"{', '.join(taken)} in use, by a running fleet or something else")
    return Finding("metrics ports", f"{METRICS_PORTS[0]}–{METRICS_PORTS[-1]} are free")


def port_is_free(port: int) -> bool:
    """Whether a server could listen on the port."""
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
