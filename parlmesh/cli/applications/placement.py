"""`parlmesh placement`: evaluates policies, recommends changes to a live cluster, and fits a world to metrics."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parlmesh.cli.connection import AsJson

if TYPE_CHECKING:
    from gymnasium import Space

    from parlmesh.policies import Policy
    from parlmesh.types import Array
    from parlmesh.worlds.cluster.live_environment import LiveCluster
    from parlmesh.worlds.cluster.parameter_fit import Fit
    from parlmesh.worlds.placement.evaluation import Evaluation

app = typer.Typer(no_args_is_help=True, help="Recommend, fit and evaluate service placements.")

World = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="settings of `parlmesh up`, or a preset, whose environment to use"),
]
Model = Annotated[
    Path | None, typer.Option("--model", metavar="FILE", help="policy.safetensors of a run or from `models export`")
]
Plugins = Annotated[
    list[str] | None, typer.Option("--plugin", metavar="SOURCE", help="plug-in of the model's network; repeatable")
]
_POOR_FIT = 0.3
_BASELINE_TARGETS = (0.3, 0.4, 0.5, 0.6, 0.7)


@app.command()
def evaluate(
    config: World = None,
    model: Model = None,
    episodes: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="whole episodes per policy")] = 64,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="seed of the conditions, the same for all policies")
    ] = 1_000_000,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Play whole episodes with a model and with every baseline under the same conditions, and print a table.

    Baselines with an autoscaler are shown with their best target utilisation.
    """
    import json

    from parlmesh.cli.screen.output_tables import print_table
    from parlmesh.worlds.placement.baselines import BASELINES, Scaled
    from parlmesh.worlds.placement.environment import PlacementVectorEnv
    from parlmesh.worlds.placement.evaluation import evaluate_baseline, evaluate_policy

    version, world = _world(config)
    found: dict[str, Evaluation] = {}
    if model is not None:
        envs = PlacementVectorEnv(1, version=version, **world)  # type: ignore[arg-type]
        policy = _policy(model, plugins, envs.single_observation_space, envs.single_action_space)
        found["model"] = evaluate_policy(policy, version, world, episodes, seed)
    for name, kind in BASELINES.items():
        targets = _BASELINE_TARGETS if issubclass(kind, Scaled) else (0.6,)
        tried = {target: evaluate_baseline(name, version, world, episodes, seed, target=target) for target in targets}
        best = max(tried, key=lambda target: tried[target].reward)
        found[f"{name} {best:g}" if len(tried) > 1 else name] = tried[best]
    if as_json:
        typer.echo(json.dumps({name: one.to_dict() for name, one in found.items()}))
        return
    # As much as fits into eighty characters; JSON has the terms of the reward too.
    columns = {
        "reward": "reward",
        "deviation": "±",
        "latency_ms": "latency ms",
        "throughput": "req/s",
        "success": "success",
    }
    print_table(
        ["policy", *(f">{heading}" for heading in columns.values())],
        [
            [name, *(f"{getattr(one, column):.3g}" for column in columns)]
            for name, one in sorted(found.items(), key=lambda pair: -pair[1].reward)
        ],
        nothing="nothing was played",
    )


@app.command()
def recommend(
    live: Annotated[
        Path, typer.Option("--live", metavar="FILE", help="YAML file: where the cluster is and how to query it")
    ],
    config: World = None,
    model: Model = None,
    baseline: Annotated[
        str, typer.Option(metavar="NAME", help="instead of a model: greedy-latency, greedy-load, kubernetes, static")
    ] = "",
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Print the changes that a policy would make to a live cluster now, and the predicted latency. Changes nothing."""
    import json

    cluster = _live(live, config)
    cluster.read()
    wanted = _wanted(cluster, model, baseline, plugins)
    prediction = cluster.predict(wanted)
    measured = float(cluster.simulation.deployment_latency[0] @ cluster.simulation.load[0])
    measured /= max(float(cluster.simulation.load[0].sum()), 1e-12)
    changes = _changes(cluster, wanted)
    writes = cluster.plan(wanted)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "changes": changes,
                    "measured_ms": measured,
                    "predicted_now_ms": prediction.now_ms,
                    "predicted_then_ms": prediction.then_ms,
                    "writes": [{"verb": write.verb, "name": write.name, "pods": write.pods} for write in writes],
                }
            )
        )
        return
    for change in changes:
        typer.echo(f"{change['deployment']} on {change['node']}: {change['from']} -> {change['to']} pods")
    if not changes:
        typer.echo("leave everything where it is")
    typer.echo(f"latency measured {measured:.1f} ms; the world says {prediction.now_ms:.1f} ms now")
    typer.echo(f"and {prediction.then_ms:.1f} ms afterwards, once all pods have started")
    typer.echo(f"it would take {len(writes)} writes that touch {sum(write.pods for write in writes)} pods")


@app.command()
def fit(
    output: Annotated[Path, typer.Argument(help="file for `parlmesh up --config` with the fitted world")],
    config: World = None,
    records: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="columns deployment, replicas, requests_per_second, latency_ms"),
    ] = None,
    prometheus: Annotated[str, typer.Option(metavar="URL", help="query Prometheus instead of a file")] = "",
    replicas_query: Annotated[str, typer.Option(metavar="PROMQL", help="ready pods by deployment")] = "",
    load_query: Annotated[str, typer.Option(metavar="PROMQL", help="requests a second by deployment")] = "",
    latency_query: Annotated[str, typer.Option(metavar="PROMQL", help="mean latency in ms by deployment")] = "",
    hours: Annotated[float, typer.Option(metavar="H", min=0.01, max=10_000, help="how far back")] = 24.0,
    step: Annotated[float, typer.Option(metavar="SECONDS", min=1, max=86_400, help="between two points")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Estimate a world's service rates, request rates and network latency from recorded metrics, and print the error.

    --config names the world whose nodes and deployments are kept; deployments are matched by name.
    """
    import json
    from dataclasses import asdict

    from parlmesh.cli.screen.output_tables import print_table
    from parlmesh.errors import InvalidInput
    from parlmesh.worlds.cluster.parameter_fit import fitted, joined_records, read_records
    from parlmesh.worlds.placement.settings import read_settings

    version, world = _world(config)
    settings = read_settings(world)
    if (records is None) == (not prometheus):
        raise InvalidInput("give either --csv or --prometheus")
    if records is not None:
        found = read_records(records)
    else:
        found = joined_records(_asked(prometheus, (replicas_query, load_query, latency_query), hours, step))
    cluster = settings.build_cluster(version)
    known = [deployment.name for deployment in cluster.deployments]
    missing = [name for name in known if name not in found]
    if missing:
        raise InvalidInput(f"there are no metrics for {', '.join(missing)}; found {', '.join(found) or 'none'}")
    fits = {name: fitted(found[name], settings.queue, name) for name in known}
    _write_world(output, version, world, cluster.model_dump(mode="json"), fits)
    poor = [name for name, one in fits.items() if one.explained < _POOR_FIT]
    if poor:
        typer.echo(
            f"the latency of {', '.join(poor)} does not follow its load and replicas (R² below {_POOR_FIT}): "
            "do not trust a policy trained on this world with the cluster",
            err=True,
        )
    if as_json:
        typer.echo(json.dumps({name: asdict(one) for name, one in fits.items()}))
        return
    print_table(
        [
            "deployment",
            ">service rate",
            ">network ms",
            ">requests/s",
            ">rows",
            ">left out",
            ">error ms",
            ">error",
            ">R²",
        ],
        [
            [
                name,
                f"{one.service_rate:.4g}",
                f"{one.network_ms:.4g}",
                f"{one.request_rate:.4g}",
                str(one.rows),
                str(one.left_out),
                f"{one.error_ms:.3g}",
                f"{one.relative_error:.1%}",
                f"{one.explained:.3f}",
            ]
            for name, one in fits.items()
        ],
        nothing="nothing was fitted",
    )
    typer.echo(f"parlmesh up --config {output}")


def _world(config: Path | None) -> "tuple[int, dict[str, Any]]":
    """Version and arguments of the placement world in a configuration."""
    import yaml

    from parlmesh.config import load
    from parlmesh.errors import InvalidInput
    from parlmesh.local.presets import settings_file
    from parlmesh.local.process_configs import UpConfig

    if config is None:
        return 3, {}
    settings = load(UpConfig, file=settings_file(config), prefix="PARLMESH_UP")
    environment = settings.training.get("environment") or {}
    environment = yaml.safe_load(environment) if isinstance(environment, str) else environment
    name = str(environment.get("id", "")) if isinstance(environment, dict) else ""
    head, _, version = name.partition("/Placement-v")
    if head != "parlmesh" or version not in ("1", "2", "3"):
        raise InvalidInput(f"{config} trains on {name or 'no environment'}, not on parlmesh/Placement-v1, -v2 or -v3")
    return int(version), dict(environment.get("kwargs") or {})


def _policy(model: Path, plugins: list[str] | None, observation_space: "Space[Any]", action_space: Any) -> "Policy":
    """Loads a saved policy and checks that it was trained with these spaces."""
    from parlmesh.environments.spaces import acted, observed
    from parlmesh.errors import InvalidInput
    from parlmesh.plugins import load_plugins
    from parlmesh.policies import load_policy, unpack_policy

    load_plugins(("parlmesh.worlds.plugin:plugin", *(plugins or ())))
    try:
        blob = model.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{model} cannot be read: {error.strerror}", reason="MODEL") from error
    spec, _ = unpack_policy(blob)
    seen, sizes = observed(observation_space), acted(action_space).spec.sizes
    if (spec.observation_shape, spec.observation_states, spec.action.sizes) != (seen.shape, seen.states, sizes):
        theirs, ours = (
            f"{states or shape[0]} {'states' if states else 'numbers'} and choices of {'+'.join(map(str, chosen))}"
            for shape, states, chosen in (
                (spec.observation_shape or (0,), spec.observation_states, spec.action.sizes),
                (seen.shape or (0,), seen.states, sizes),
            )
        )
        raise InvalidInput(
            f"{model} was trained on another world: it has {theirs}, this one {ours}; the numbers of nodes and "
            "deployments must be those of the training",
            reason="MODEL",
        )
    return load_policy(blob)


def _live(live: Path, config: Path | None) -> "LiveCluster":
    from parlmesh.config import load
    from parlmesh.errors import InvalidInput
    from parlmesh.optional_packages import require

    require("parlmesh placement recommend", "kubernetes", "kubernetes")
    from parlmesh.worlds.cluster.kubernetes_client import connect
    from parlmesh.worlds.cluster.live_environment import LiveCluster
    from parlmesh.worlds.cluster.settings import LiveConfig

    version, world = _world(config)
    if version != 3 or not world.get("cluster"):
        raise InvalidInput(
            "a live cluster needs --config of Placement-v3 with its `cluster`; `placement fit` writes one"
        )
    settings = load(LiveConfig, file=live, prefix="PARLMESH_PLACEMENT")
    return LiveCluster(connect(settings.kubeconfig, settings.context, settings.server), settings, world)


def _wanted(cluster: "LiveCluster", model: Path | None, baseline: str, plugins: list[str] | None) -> "Array":
    """Pods that the policy wants, by node and deployment [N, D]."""
    import numpy as np

    from parlmesh.environments.spaces import observed
    from parlmesh.errors import InvalidInput
    from parlmesh.worlds.placement.baselines import BASELINES
    from parlmesh.worlds.placement.operations import apply_operations

    if (model is None) == (not baseline):
        raise InvalidInput("give either --model or --baseline")
    world = cluster.simulation
    if model is None:
        if baseline not in BASELINES:
            raise InvalidInput(f"baseline must be one of {', '.join(BASELINES)}, got {baseline!r}")
        found: Array = BASELINES[baseline](world, np.random.default_rng(0)).wanted()[0]
        return found
    read, seen = observed(cluster.view.observation_space), cluster.view.observe(world)
    policy = _policy(model, plugins, cluster.view.observation_space, cluster.view.action_space)
    mask = read.mask(seen) if read.mask is not None else None
    choice = policy.greedy(read.take(seen), mask, policy.initial_state(1))
    chosen: Array = apply_operations(world, policy.to_environment(choice.action))[0][0]
    return chosen


def _changes(cluster: "LiveCluster", wanted: "Array") -> list[dict[str, Any]]:
    world, before = cluster.simulation.cluster, cluster.snapshot.pods
    return [
        {
            "deployment": deployment.name,
            "node": node.name,
            "from": int(before[row, column]),
            "to": int(wanted[row, column]),
        }
        for column, deployment in enumerate(world.deployments)
        for row, node in enumerate(world.nodes)
        if before[row, column] != wanted[row, column]
    ]


def _asked(url: str, queries: tuple[str, str, str], hours: float, step: float) -> "list[dict[str, dict[float, float]]]":
    import time

    from parlmesh.errors import InvalidInput
    from parlmesh.worlds.cluster.prometheus import over_time

    if not all(queries):
        raise InvalidInput("--prometheus needs --replicas-query, --load-query and --latency-query")
    end = time.time()
    return [over_time(url, query, end - hours * 3600.0, end, step) for query in queries]


def _write_world(
    output: Path, version: int, world: dict[str, Any], cluster: dict[str, Any], fits: "dict[str, Fit]"
) -> None:
    """Writes the world with the fitted rates. Distances keep their proportions: only their mean was fitted."""
    import yaml

    from parlmesh.durable_files import PRIVATE, replace_file

    for deployment in cluster["deployments"]:
        one = fits[deployment["name"]]
        deployment |= {
            "service_rate": round(one.service_rate, 4),
            "request_rate": round(max(one.request_rate, 1e-6), 4),
        }
    network = sum(one.network_ms * one.request_rate for one in fits.values())
    network /= max(sum(one.request_rate for one in fits.values()), 1e-12)
    distances = cluster["distance_ms"]
    mean = sum(sum(row) for row in distances) / sum(len(row) for row in distances)
    own = sum(node["latency_ms"] for node in cluster["nodes"]) / len(cluster["nodes"])
    scale = network / (mean + own) if mean + own > 0 else 0.0
    cluster["distance_ms"] = [[round(value * scale, 4) for value in row] for row in distances]
    for node in cluster["nodes"]:
        node["latency_ms"] = round(node["latency_ms"] * scale, 4)
    kept = {key: value for key, value in world.items() if key not in ("nodes", "deployments", "cluster_seed")}
    environment = {"id": f"parlmesh/Placement-v{version}", "kwargs": {**kept, "cluster": cluster}}
    text = "# Made by `parlmesh placement fit`.\n" + str(
        yaml.safe_dump({"training": {"environment": environment}}, sort_keys=False)
    )
    replace_file(output, text.encode(), mode=PRIVATE)
