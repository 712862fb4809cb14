"""Writes the reference pages of the documentation from the code: settings, commands, the contract.

python tools/reference.py docs/reference
"""

import re
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from actor.config import ActorConfig
from learner.config import LearnerConfig
from parlmesh.config.fields import REQUIRED, describe, is_secret, leaves
from parlmesh.deployment.settings import DeploySettings
from parlmesh.relay.config import RelayConfig
from scheduler.config import SchedulerConfig

ROOT = Path(__file__).resolve().parent.parent
MODELS: dict[str, type[BaseModel]] = {
    "scheduler": SchedulerConfig,
    "learner": LearnerConfig,
    "relay": RelayConfig,
    "actor": ActorConfig,
    "deploy": DeploySettings,
}
MADE = "\n*Written from the code by `tools/reference.py`.*\n"


def configuration() -> str:
    """Every key of every service."""
    lines = [
        "# Configuration\n",
        "Keys as in the YAML file of `--config` and after `--set`; as environment variables",
        "`PARLMESH_<SERVICE>__SECTION__KEY`. `--print-config` of each binary shows what took effect. The",
        "keys of `deploy` are those of `parlmesh deploy render`.",
        MADE,
    ]
    for service, model in MODELS.items():
        lines += [f"\n## {service}\n", "| key | takes | default | meaning |", "|---|---|---|---|"]
        for leaf in leaves(model):
            default = "required" if leaf.default is REQUIRED else _shown(leaf.default)
            if is_secret(leaf.field.annotation):
                default = "`null`"
            lines.append(f"| `{leaf.key}` | {_cell(describe(leaf.field))} | {_cell(default)} | {_cell(leaf.meaning)} |")
    return "\n".join(lines) + "\n"


def commands() -> str:
    """Every command with its options."""
    import click
    import typer

    from parlmesh.cli.__main__ import app

    lines = ["# Commands\n", "`parlmesh --help` and each command's `--help` say the same.", MADE]

    def add(command: Any, name: str) -> None:
        context = click.Context(command, info_name=name)
        if subcommands := getattr(command, "commands", None):
            lines.append(f"\n## {name}\n\n{_first(command.help)}")
            for each in subcommands:
                add(subcommands[each], f"{name} {each}")
            return
        lines.append(f"\n### {name}\n\n{_paragraphs(command.help)}\n")
        usage = " ".join(command.collect_usage_pieces(context)).replace("[OPTIONS]", "[options]")
        lines.append(f"```text\n{name} {usage}\n```\n")
        rows = [row for row in (parameter.get_help_record(context) for parameter in command.params) if row is not None]
        if rows:
            lines.extend(["| option | meaning |", "|---|---|"])
            lines.extend(f"| `{option}` | {_cell(meaning)} |" for option, meaning in rows)

    root = typer.main.get_command(app)
    for each in root.commands:  # type: ignore[attr-defined]
        add(root.commands[each], f"parlmesh {each}")  # type: ignore[attr-defined]
    return "\n".join(lines) + "\n"


def contract() -> str:
    """The proto files as they stand."""
    lines = ["# The contract\n", "`parlmesh.v1` only grows. Calls by hand: [grpcurl](../grpcurl.md).", MADE]
    for file in sorted((ROOT / "protos" / "parlmesh" / "v1").glob("*.proto")):
        text = file.read_text().strip()
        services = re.findall(r"^service (\w+)", text, re.MULTILINE)
        lines.append(f"\n## {', '.join(services) or file.stem}\n\n`{file.name}`\n\n```proto\n{text}\n```")
    return "\n".join(lines) + "\n"


PAGES = {"configuration.md": configuration, "commands.md": commands, "contract.md": contract}


def _shown(value: Any) -> str:
    value = getattr(value, "value", value)
    return "`null`" if value is None else f"`{value}`" if value != "" else "empty"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _first(text: str | None) -> str:
    return (text or "").strip().split("\n\n")[0]


def _paragraphs(text: str | None) -> str:
    """The second paragraph of a help text is an example."""
    return "\n\n".join(" ".join(each.split()) for each in (text or "").strip().split("\n\n"))


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference")
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
