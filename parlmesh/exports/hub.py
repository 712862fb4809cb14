"""A model as a folder for model hubs: the policy, its settings, and a model card."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from parlmesh.durable_files import replace_file
from parlmesh.errors import AlreadyExists, FailedPrecondition

CARD, POLICY, CONFIG, SETTINGS = "README.md", "policy.safetensors", "config.json", "settings.yaml"


def write_hub_folder(folder: Path, blob: bytes, training: Mapping[str, Any], about: Mapping[str, Any]) -> list[Path]:
    """Writes a new folder; `about` is the run's metadata of the model, `training` the section of its settings."""
    if folder.exists():
        raise AlreadyExists(f"{folder} exists; choose another")
    environment = dict(training.get("environment") or {"id": about.get("environment", "")})
    config = {**about, "environment": environment}
    files = {
        POLICY: blob,
        CONFIG: json.dumps(config, indent=2, sort_keys=True).encode() + b"\n",
        SETTINGS: yaml.safe_dump({"training": dict(training)}, sort_keys=False).encode(),
        # Written last: a folder with a card is complete.
        CARD: model_card(folder.name, str(environment.get("id", "")), about).encode(),
    }
    try:
        folder.mkdir(parents=True)
        for name, data in files.items():
            replace_file(folder / name, data)
    except OSError as error:
        raise FailedPrecondition(f"{folder} cannot be written: {error.strerror}", reason="CANNOT_WRITE") from error
    return [folder / name for name in files]


def hub_environment(folder: Path) -> dict[str, Any]:
    """The environment that the policy in such a folder was trained in; empty if unknown."""
    try:
        found = json.loads((folder / CONFIG).read_bytes())["environment"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return dict(found) if isinstance(found, dict) else {}


def model_card(name: str, world: str, about: Mapping[str, Any]) -> str:
    """Markdown with the front matter that hubs index by."""
    algorithm, earned = str(about.get("algorithm", "policy")), about.get("evaluation_return")
    matter: dict[str, Any] = {"library_name": "parlmesh", "tags": ["reinforcement-learning", world, algorithm]}
    if earned is not None:
        result = {
            "task": {"type": "reinforcement-learning"},
            "dataset": {"name": world, "type": world},
            "metrics": [{"type": "mean_reward", "name": "mean return", "value": round(float(earned), 2)}],
        }
        matter["model-index"] = [{"name": algorithm, "results": [result]}]
    facts = {
        "environment": f"`{world}`",
        "algorithm": algorithm,
        "environment steps": f"{int(about['steps']):,}" if "steps" in about else "not known",
        "mean return": f"{float(earned):,.2f}" if earned is not None else "not evaluated",
        "evaluation episodes": str(about.get("evaluation_episodes", "none")),
        "seed": str(about.get("seed", "not known")),
    }
    # JSON is also YAML and needs no rules for quoting.
    head = "\n".join(f"{key}: {json.dumps(value)}" for key, value in matter.items())
    table = "\n".join(f"| {fact} | {value} |" for fact, value in facts.items())
    commands = {
        f"parlmesh evaluate {name} --episodes 100": "plays it",
        f"parlmesh up --config {name}/{SETTINGS}": "trains it again",
    }
    width = max(map(len, commands))
    lines = "\n".join(f"{command.ljust(width)}    {what}" for command, what in commands.items())
    return f"""---
{head}
---
# {algorithm} for {world}

| | |
|---|---|
{table}

```python
import parlmesh

policy = parlmesh.load_policy("{name}")
action = policy.act(observation)
```
```
{lines}
```
"""
