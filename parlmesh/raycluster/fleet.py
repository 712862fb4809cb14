"""Places a fleet in a Ray cluster, finds it by name, and ends it. The only module that uses Ray."""

import contextlib
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from parlmesh.config import Config
from parlmesh.errors import AlreadyExists, DeadlineExceeded, NotFound, Unavailable
from parlmesh.optional_packages import require

from .process_keeper import Host, Part

NAMESPACE = "parlmesh"
_CALL_SECONDS = 30.0
_STOP_SECONDS = 60.0


class RayFleetConfig(Config):
    """Settings of a fleet in a Ray cluster."""

    name: str = Field(default="parlmesh", pattern=r"^[a-z][a-z0-9-]{0,62}$")
    """Name of the fleet in the cluster; each fleet needs its own."""
    actors: int = Field(default=2, ge=1, le=10_000)
    """Number of actors, spread over the nodes."""
    slots: int = Field(default=1, ge=1, le=1_024)
    """Tasks that one actor runs at once; it requests as many CPUs from Ray."""
    server_cpus: float = Field(default=1.0, ge=0.0)
    """CPUs that scheduler and learner together request from Ray, on one node."""
    learner_gpus: float = Field(default=0.0, ge=0.0)
    """GPUs for the learner."""
    folder: str = ""
    """Folder for journal, runs and logs, visible to every node; empty = local to the node, and lost with it."""
    secure: bool = True
    """Use TLS and identities from the fleet's own certificate authority."""
    ready_seconds: float = Field(default=120.0, gt=0.0)
    """Longest wait for Ray to place the fleet and for the fleet to serve."""
    run_id: str = Field(default="run", min_length=1, max_length=100)
    """Name of the run."""
    training: dict[str, Any] = Field(default_factory=dict)
    """The learner's `training` section."""
    learner: dict[str, Any] = Field(default_factory=dict)
    """Other settings of the learner."""
    actor: dict[str, Any] = Field(default_factory=dict)
    """Settings of every actor."""
    scheduler: dict[str, Any] = Field(default_factory=dict)
    """Settings of the scheduler."""


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connects Ray to a cluster; Ray reads RAY_AUTH_MODE and RAY_AUTH_TOKEN from the environment.

    Ray's output goes to standard error, because standard output belongs to the command.
    """
    require("parlmesh ray", "ray", "ray")
    with contextlib.redirect_stdout(sys.stderr):
        import ray

        try:
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="warning")
        except ConnectionError as error:
            raise Unavailable(f"no Ray cluster answers at {address}: {error}") from None
        try:
            yield ray
        finally:
            ray.shutdown()


def parts(config: RayFleetConfig, secrets: Mapping[str, Mapping[str, bytes]]) -> list[Part]:
    """Scheduler, learner and actors; `secrets` holds the files of each."""

    def part(name: str, service: str, settings: Mapping[str, Any], **peers: str) -> Part:
        files = dict(secrets.get(name, {}))
        secured: dict[str, Any] = {"ca": "ca.crt", "certificate": f"{name}.crt", "key": f"{name}.key"}
        if "tokens.yaml" in files:
            secured["tokens"] = "tokens.yaml"
        security = secured if files else {"insecure": True} if service != "actor" else {}
        whole = {"metrics": {"port": 0}, "security": security, **settings}
        named = {key: f"{config.name}-{peer}" for key, peer in peers.items()}
        return Part(name, service, whole, named, files, f"{config.folder}/{config.name}" if config.folder else "")

    training = {"training": config.training, "run_id": config.run_id}
    found = [
        part("scheduler", "scheduler", config.scheduler),
        part("learner", "learner", {**training, **config.learner}, scheduler="scheduler"),
    ]
    for index in range(config.actors):
        name = f"actor-{index}"
        own = {"node_id": name, "actor_id": name, "slots": config.slots, **config.actor}
        found.append(part(name, "actor", own, scheduler="scheduler", learner="learner"))
    return found


def up(ray: Any, config: RayFleetConfig, secrets: Mapping[str, Mapping[str, bytes]]) -> dict[str, str]:
    """Places the fleet and returns its servers' addresses; removes everything if that fails."""
    from ray.util import get_placement_group, placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    try:
        get_placement_group(config.name)
    except ValueError:
        pass
    else:
        raise AlreadyExists(f"a fleet {config.name!r} is in this cluster; end it with: parlmesh ray down {config.name}")
    servers = {"CPU": max(config.server_cpus, 0.01)} | ({"GPU": config.learner_gpus} if config.learner_gpus else {})
    bundles = [servers, *({"CPU": float(config.slots)} for _ in range(config.actors))]
    group = placement_group(bundles, strategy="SPREAD", name=config.name, lifetime="detached")
    try:
        if not group.wait(config.ready_seconds):
            needed = sum(bundle["CPU"] for bundle in bundles)
            raise Unavailable(
                f"Ray could not place {needed:g} CPUs within {config.ready_seconds:g} s; it has"
                f" {ray.available_resources().get('CPU', 0):g} free"
            )
        for number, part in enumerate(parts(config, secrets)):
            # Scheduler and learner share the first bundle.
            bundle = max(0, number - 1)
            share = config.server_cpus / 2 if number < 2 else float(config.slots)
            ray.remote(RayHost).options(
                name=f"{config.name}-{part.name}",
                lifetime="detached",
                max_restarts=-1,
                max_concurrency=4,
                num_cpus=share,
                num_gpus=config.learner_gpus if part.name == "learner" else 0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle),
            ).remote(part)
        return _serving(ray, config)
    except BaseException:
        with contextlib.suppress(NotFound):
            down(ray, config.name)
        raise


def _serving(ray: Any, config: RayFleetConfig) -> dict[str, str]:
    deadline = time.monotonic() + config.ready_seconds
    found: dict[str, str] = {}
    for service in ("scheduler", "learner"):
        while not (address := find(ray, f"{config.name}-{service}")):
            if time.monotonic() >= deadline:
                said = [standing["last_end"] for standing in standings(ray, config.name) if standing["last_end"]]
                why = f"; {said[0]}" if said else ""
                raise DeadlineExceeded(f"{service} did not serve within {config.ready_seconds:g} s{why}")
            time.sleep(0.2)
        found[service] = address
    return found


def down(ray: Any, name: str) -> int:
    """Ends the learner, then the actors, then the scheduler; returns the number of processes."""
    from ray.util import get_placement_group, remove_placement_group

    found = _hosts(ray, name)
    order = sorted(found, key=lambda each: (each.endswith("-scheduler"), not each.endswith("-learner"), each))
    for each in order:
        # On a lost node no process is left to end; elsewhere the process ends with its keeper.
        with contextlib.suppress(ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
            ray.get(found[each].stop.remote(), timeout=_STOP_SECONDS)
        ray.kill(found[each])
    try:
        remove_placement_group(get_placement_group(name))
    except ValueError:
        if not found:
            raise NotFound(f"no fleet {name!r} is in this cluster") from None
    return len(found)


def standings(ray: Any, name: str) -> list[dict[str, Any]]:
    """The state of every process, as reported by its keeper."""
    answers = []
    for each, host in sorted(_hosts(ray, name).items()):
        try:
            answers.append(ray.get(host.standing.remote(), timeout=_CALL_SECONDS))
        except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
            nowhere = {"node": "", "address": "", "pid": 0, "starts": 0, "last_end": "not placed", "node_id": ""}
            answers.append({"name": each.removeprefix(f"{name}-"), **nowhere})
    return answers


def node_addresses(ray: Any) -> Sequence[str]:
    """Addresses of all current nodes: servers may run on any of them."""
    return sorted({node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]})


def find(ray: Any, name: str) -> str:
    """The address of a part; empty if it has none yet."""
    try:
        host = ray.get_actor(name, namespace=NAMESPACE)
        address: str = ray.get(host.address.remote(), timeout=_CALL_SECONDS)
    except (ValueError, ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
        return ""
    return address


def _hosts(ray: Any, name: str) -> dict[str, Any]:
    """The keepers of a fleet, by name."""
    names = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True) if each["namespace"] == NAMESPACE]
    parts = [each for each in names if re.fullmatch(rf"{re.escape(name)}-(scheduler|learner|actor-\d+)", each)]
    return {each: ray.get_actor(each, namespace=NAMESPACE) for each in parts}


class RayHost(Host):
    """A keeper created by Ray: it knows its node and finds the others by name."""

    def __init__(self, part: Part) -> None:
        import ray

        super().__init__(part, ray.util.get_node_ip_address(), lambda name: find(ray, name))
        self._node_id = ray.get_runtime_context().get_node_id()

    def standing(self) -> dict[str, Any]:
        """The state with Ray's node id: several nodes may share an address."""
        return {**super().standing(), "node_id": self._node_id}
