"""The command line that all services share. Imports no gRPC, so that `--help` is instant."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from parlmesh.errors import ConfigError
from parlmesh.exit_codes import EXIT_CONFIGURATION

from .effective_config import MASK, to_yaml
from .fields import REQUIRED, Leaf, describe, is_secret, leaves
from .loader import load
from .validation_errors import stray_variables

ConfigT = TypeVar("ConfigT", bound=BaseModel)


def parse_arguments(
    service: str,
    model: type[ConfigT],
    argv: Sequence[str] | None = None,
    description: str = "",
) -> ConfigT:
    """The configuration from the command line, its file and the environment; exits for `--help` and the like."""
    name = service.removeprefix("parlmesh-")
    prefix = "PARLMESH_" + name.upper().replace("-", "_")
    parser = _Parser(model, prefix, prog=f"parlmesh-{name}", description=description or None, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", type=Path, help="YAML file with keys from the list below")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="set one key; repeatable")
    if "plugins" in model.model_fields:
        parser.add_argument(
            "--plugin", metavar="SOURCE", action="append", default=[], help="one more plug-in; repeatable"
        )
    parser.add_argument("--print-config", action="store_true", help="print the effective configuration and exit")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    arguments = parser.parse_args(argv)
    try:
        config = load(model, file=arguments.config, overrides=arguments.set, environment=os.environ, prefix=prefix)
    except ConfigError as error:
        parser.exit(EXIT_CONFIGURATION, f"{parser.prog}: {error.message}\n")
    for sentence in stray_variables(os.environ, prefix):
        sys.stderr.write(f"{parser.prog}: warning: {sentence}\n")
    if given := tuple(getattr(arguments, "plugin", ())):
        config = config.model_copy(update={"plugins": (*getattr(config, "plugins", ()), *given)})
    if arguments.print_config:
        sys.stdout.write(to_yaml(config))
        parser.exit(0)
    return config


class _Parser(argparse.ArgumentParser):
    """An argparse parser whose help lists every key of the configuration."""

    def __init__(self, model: type[BaseModel], prefix: str, **options: Any) -> None:
        super().__init__(**options)
        self._model = model
        self._prefix = prefix

    def format_help(self) -> str:
        lines = [
            super().format_help(),
            "keys, as in the YAML file and after --set; as environment variables:",
            f"{self._prefix}__SECTION__KEY",
        ]
        for leaf in leaves(self._model):
            lines.append(f"  {leaf.key}: {describe(leaf.field)}{_default(leaf)}")
            if leaf.meaning:
                lines.append(f"      {leaf.meaning}")
        return "\n".join(lines) + "\n"


def _default(leaf: Leaf) -> str:
    if leaf.default is REQUIRED:
        return " (required)"
    if leaf.default is not None and is_secret(leaf.field.annotation):
        return f" (default {MASK})"
    if leaf.default is None or isinstance(leaf.default, bool):
        return f" (default {json.dumps(leaf.default)})"
    return f" (default {getattr(leaf.default, 'value', leaf.default)})"


class _Version(argparse.Action):
    """Reads the version only on demand, because importlib.metadata is slow to import."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("parlmesh")
        except PackageNotFoundError:
            found = "unknown (not installed)"
        sys.stdout.write(f"{parser.prog} {found}\n")
        parser.exit(0)
