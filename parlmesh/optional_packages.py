"""Optional packages, and the message for users who lack one. Imports none of them."""

import importlib.util
import sys
from collections.abc import Mapping

from parlmesh.exit_codes import EXIT_CONFIGURATION

SERVER = ("grpc_health", "grpc_reflection", "prometheus_client")
"""Packages that every service imports and the SDK does not."""

# By import name; where several extras include a package, the smallest extra.
_EXTRAS: Mapping[str, str] = {
    "asyncpg": "postgres",
    "cryptography": "security",
    "cmaes": "tune",
    "grpc_health": "server",
    "grpc_reflection": "server",
    "gymnasium": "actor",
    "jinja2": "dashboard",
    "jwt": "security",
    "kubernetes": "kubernetes",
    "matplotlib": "charts",
    "minari": "offline",
    "networkx": "mesh",
    "onnx": "export",
    "optuna": "tune",
    "prometheus_client": "server",
    "psutil": "mapek",
    "ray": "ray",
    "rich": "cli",
    "safetensors": "actor",
    "scipy": "worlds",
    "sklearn": "federation",
    "starlette": "dashboard",
    "tensorboard": "learner",
    "torch": "learner",
    "typer": "cli",
    "uvicorn": "dashboard",
    "wandb": "tracking",
    "zstandard": "actor",
}


def require(program: str, extra: str, *modules: str) -> None:
    """Exits with one sentence and exit code 2 unless all modules can be imported."""
    missing = [module for module in modules if not _is_installed(module)]
    if missing:
        sys.stderr.write(f"error: {program} needs {', '.join(missing)}: pip install 'parlmesh[{extra}]'\n")
        sys.exit(EXIT_CONFIGURATION)


def need(what: str, extra: str, *modules: str) -> None:
    """Raises ModuleNotFoundError with one sentence, for calls from Python, unless all modules can be imported."""
    missing = [module for module in modules if not _is_installed(module)]
    if missing:
        raise ModuleNotFoundError(
            f"{what} needs {', '.join(missing)}: pip install 'parlmesh[{extra}]'", name=missing[0]
        )


def missing_extra(error: BaseException) -> str:
    """The package to install if the error is a missing package of an extra; otherwise empty."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    extra = _EXTRAS.get(module)
    return f"{module} is not installed: pip install 'parlmesh[{extra}]'" if extra else ""


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # sys.modules has None for it: its import was forbidden
        return False
