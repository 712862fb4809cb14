"""Examples for the end of each command's --help, unless the docstring has its own. A test parses them."""

from collections.abc import Iterator, Mapping

import typer
from typer.models import CommandInfo

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "actors drain": ("parlmesh actors drain actor-0",),
    "actors list": ("parlmesh actors list --json",),
    "actors pause": ("parlmesh actors pause actor-0 actor-1",),
    "actors quarantine": ('parlmesh actors quarantine actor-0 --reason "wrong results"',),
    "actors reset": ("parlmesh actors reset actor-0",),
    "actors resume": ("parlmesh actors resume actor-0",),
    "bench train": ("parlmesh bench train --profile",),
    "certs ca": ("parlmesh certs ca",),
    "certs node": ("parlmesh certs node edge-1",),
    "certs server": ("parlmesh certs server scheduler --dns hub.example --ip 10.0.0.1",),
    "certs token": ("parlmesh certs token ada --role reader",),
    "dashboard": ("parlmesh dashboard --logs runs", "parlmesh dashboard --port 0 --prefix /fleet"),
    "deploy protoset": ("parlmesh deploy protoset --out parlmesh.binpb",),
    "deploy render": ("parlmesh deploy render all --out deploy-here",),
    "deploy settings": ("parlmesh deploy settings",),
    "doctor": ("parlmesh doctor",),
    "evaluate": (
        "parlmesh evaluate runs/cartpole-v1-20260102-120000 --episodes 100",
        "parlmesh evaluate best.safetensors --environment CartPole-v1 --video cartpole.gif",
    ),
    "federation list": ("parlmesh federation list",),
    "federation rounds": ("parlmesh federation rounds",),
    "federation simulate": ("parlmesh federation simulate",),
    "federation start": ("parlmesh federation start --set rule.name=median",),
    "federation status": ("parlmesh federation status --json",),
    "federation stop": ("parlmesh federation stop",),
    "job compare": ("parlmesh job compare monday friday",),
    "job report": ("parlmesh job report monday --perfetto monday.json",),
    "logs": ("parlmesh logs actor-0 --follow", "parlmesh logs t-6afc1a66-1"),
    "mapek explain": ("parlmesh mapek explain 4f2a",),
    "mapek history": ("parlmesh mapek history",),
    "mapek once": ("parlmesh mapek once",),
    "mapek run": ("parlmesh mapek run --scheduler 127.0.0.1:50051",),
    "mesh optimize": ("parlmesh mesh optimize generated:50",),
    "mesh show": ("parlmesh mesh show generated:50 mesh.png",),
    "mesh try": ("parlmesh mesh try --fault loss",),
    "mesh whatif": ("parlmesh mesh whatif generated:50 --depth 2",),
    "models delete": ("parlmesh models delete 12",),
    "models export": (
        "parlmesh models export policy.onnx --run taxi",
        "parlmesh models export my-cartpole --from runs/cartpole-v1-20260102-120000 --best",
    ),
    "models list": ("parlmesh models list",),
    "models promote": ("parlmesh models promote 12",),
    "models show": ("parlmesh models show",),
    "orchestration compare": ("parlmesh orchestration compare",),
    "orchestration variants": ("parlmesh orchestration variants",),
    "placement evaluate": ("parlmesh placement evaluate --config ppo-placement --episodes 16",),
    "placement fit": ("parlmesh placement fit placement.yaml --csv metrics.csv",),
    "placement recommend": ("parlmesh placement recommend --live live.yaml",),
    "play": ("parlmesh play connect_four", "parlmesh play shogi --model policy.safetensors --second"),
    "ray down": ("parlmesh ray down",),
    "ray status": ("parlmesh ray status --json",),
    "status": ("parlmesh status", "parlmesh status --scheduler hub:50051 --json"),
    "store check": ("parlmesh store check --url postgresql://parlmesh@db.example/parlmesh",),
    "store migrate": ("parlmesh store migrate --url postgresql://parlmesh@db.example/parlmesh --password-file pw",),
    "tasks cancel": ("parlmesh tasks cancel t-6afc1a66-1",),
    "tasks list": ("parlmesh tasks list --state failed --limit 20",),
    "tasks submit": (
        "parlmesh tasks submit echo --param word=hello --wait",
        "parlmesh tasks submit sleep --param seconds=1 --count 100 --priority high",
    ),
    "tasks watch": ("parlmesh tasks watch t-6afc1a66-1 --timeout 60",),
    "tasks why": ("parlmesh tasks why t-6afc1a66-1",),
    "top": ("parlmesh top", "parlmesh top --tab tasks", "parlmesh top --json"),
    "train create": ("parlmesh train create --environment Acrobot-v1 --run acrobot --start",),
    "train list": ("parlmesh train list",),
    "train pause": ("parlmesh train pause --run acrobot",),
    "train resume": ("parlmesh train resume --run acrobot",),
    "train start": ("parlmesh train start --run acrobot",),
    "train stop": ("parlmesh train stop --run acrobot",),
    "train wait": ("parlmesh train wait --run acrobot",),
    "tune": ("parlmesh tune studies/cartpole --config examples/tuning/cartpole.yaml",),
    "usi": ("parlmesh usi --model policy.safetensors",),
    "up": ("parlmesh up --config ppo-acrobot", "parlmesh up --actors 4 --keep"),
}


def commands_of(app: typer.Typer, before: str = "") -> Iterator[tuple[str, CommandInfo]]:
    """Every command with the words to type for it."""
    for command in app.registered_commands:
        assert command.callback is not None
        yield before + (command.name or command.callback.__name__.replace("_", "-")), command
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from commands_of(group.typer_instance, f"{before}{group.name} ")


def give_examples(app: typer.Typer) -> None:
    """Appends the examples to --help; the \\b in front keeps their line breaks."""
    for name, command in commands_of(app):
        if name in EXAMPLES:
            lines = "\n".join(f"  {line}" for line in EXAMPLES[name])
            command.epilog = f"\b\nFor example:\n{lines}"
