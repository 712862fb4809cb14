"""Dependencies: every import is declared, and the SDK needs little."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from parlmesh.optional_packages import _EXTRAS, SERVER

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = {"parlmesh", "actor", "learner", "scheduler"}
# Installed by hand if wanted; the code says so when they are missing. imageio-ffmpeg brings a program under the GPL.
NOT_DECLARED = {"imageio_ffmpeg"}
# What is installed for a module or a folder: the base and these extras.
NEEDS = {
    "scheduler.serve": ("scheduler",),
    "learner.serve": ("learner",),
    "actor.serve": ("actor",),
    "parlmesh.relay": ("relay",),
    "parlmesh.dashboard": ("dashboard",),
    "parlmesh.client": (),
    "parlmesh.api": ("actor",),
    "parlmesh.cli": ("cli",),
    "parlmesh.exports": ("export", "actor"),
    "parlmesh.joblib": ("joblib",),
    "parlmesh.mesh": ("mesh", "actor"),
    "parlmesh.mapek": ("mapek", "actor"),
    "parlmesh.orchestration": ("learner",),
    "parlmesh.postgres": ("postgres",),
    "parlmesh.raycluster": ("ray", "security"),
    "parlmesh.selfplay": ("games", "learner"),
    "parlmesh.tuning": ("tune", "actor"),
    "parlmesh.worlds": ("worlds",),
    "parlmesh.worlds.cluster": ("worlds", "kubernetes"),
    "parlmesh.worlds.placement": ("worlds", "learner"),
}
# Packages that the SDK does not need.
ABSENT = (
    *("torch", "gymnasium", "safetensors", "zstandard", "matplotlib", "tensorboard", "sklearn", "scipy"),
    *("grpc_health", "grpc_reflection", "grpc_status", "prometheus_client", "uvloop"),
    *("typer", "rich", "cryptography", "jwt"),
)
TASK = """
import sys
for name in {absent}:
    sys.modules[name] = None
from parlmesh.client import TaskRequest
from parlmesh.client.sync import Controller
with Controller({address!r}) as controller:
    (outcome,) = controller.execute_parallel([TaskRequest("echo", {{"word": "hello"}})])
    print(outcome.unwrap())
"""


def extra(name: str) -> set[str]:
    """The distributions of an extra and of the extras it includes; "" = the base."""
    lines = PROJECT["optional-dependencies"][name] if name else PROJECT["dependencies"]
    found = set()
    for requirement in map(Requirement, lines):
        if requirement.name == "parlmesh":
            found |= set().union(*map(extra, requirement.extras))
        else:
            found.add(canonicalize_name(requirement.name))
    return found


@cache
def imports() -> frozenset[tuple[str, Path]]:
    return frozenset(_imports())


def _imports() -> Iterator[tuple[str, Path]]:
    """Every external module that the product imports, at any place."""
    for top in OURS:
        for file in (ROOT / top).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Import):
                    named = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                    named = [node.module]
                else:
                    continue
                for name in named:
                    if name.split(".")[0] not in OURS | sys.stdlib_module_names:
                        yield name, file


# Packages whose import name differs; pydantic pins its core.
DISTRIBUTIONS = {
    "google.protobuf": "protobuf",
    "google.rpc": "googleapis-common-protos",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "jwt": "pyjwt",
    "pydantic_core": "pydantic",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def distribution_of(module: str) -> str:
    parts = module.split(".")
    name = ".".join(parts[:2]) if parts[0] == "google" else parts[0]
    return canonicalize_name(DISTRIBUTIONS.get(name, name))


def test_what_is_imported_is_declared() -> None:
    declared = extra("").union(*(extra(name) for name in PROJECT["optional-dependencies"] if name != "dev"))
    missing = {
        f"{module} in {file.relative_to(ROOT)}"
        for module, file in imports()
        if module.split(".")[0] not in NOT_DECLARED and distribution_of(module) not in declared
    }
    assert missing == set()


def file_of(module: str) -> Path | None:
    """The source of one of our modules."""
    path = ROOT / module.replace(".", "/")
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.exists()), None)


def modules_in(name: str) -> list[str]:
    """The module, or the modules of the folder without its subfolders that NEEDS names."""
    if not (ROOT / name.replace(".", "/")).is_dir():
        return [name]
    found = []
    for file in (ROOT / name.replace(".", "/")).rglob("*.py"):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if not any(other.startswith(f"{name}.") and f"{module}.".startswith(f"{other}.") for other in NEEDS):
            found.append(module)
    return found


@cache
def imports_at_once(module: str) -> tuple[str, ...]:
    """What the module imports when it is imported: not in functions, for types, or where it may be missing."""
    file = file_of(module)
    assert file is not None, module
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    found: list[str] = []
    statements: list[ast.stmt] = list(ast.parse(file.read_text()).body)
    while statements:
        match statements.pop():
            case ast.Import(names=names):
                found += (alias.name for alias in names)
            case ast.ImportFrom(names=names, level=level) as node:
                base = [*(package[: len(package) - level + 1] if level else ()), *filter(None, (node.module,))]
                found += (".".join((*base, alias.name)) for alias in names)
            case ast.If(test=test, body=body, orelse=orelse):
                statements += orelse if "TYPE_CHECKING" in ast.unparse(test) else (*body, *orelse)
            case ast.With(body=body):
                statements += body
    return tuple(found)


def loaded_with(modules: list[str]) -> dict[str, str]:
    """Every distribution that importing the modules imports, and one of our modules that does so."""
    seen: set[str] = set()
    found: dict[str, str] = {}
    while modules:
        module = modules.pop()
        if module in seen:
            continue
        seen.add(module)
        for name in imports_at_once(module):
            top, *_ = parts = name.split(".")
            if top in OURS:
                prefixes = (".".join(parts[: count + 1]) for count in range(len(parts)))
                modules += (prefix for prefix in prefixes if file_of(prefix))
            elif top not in sys.stdlib_module_names:
                found[distribution_of(name)] = module
    return found


@pytest.mark.parametrize("name", NEEDS)
def test_what_is_imported_at_once_is_in_the_extra(name: str) -> None:
    installed = extra("").union(*map(extra, NEEDS[name]))
    assert {key: by for key, by in loaded_with(modules_in(name)).items() if key not in installed} == {}


@pytest.mark.parametrize("service", ["scheduler", "learner", "actor", "parlmesh.relay"])
def test_a_service_asks_for_all_that_it_imports_at_once(service: str) -> None:
    source = (ROOT / service.replace(".", "/") / "__main__.py").read_text()
    (call,) = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "require" and "parlmesh-" in ast.unparse(node)
    )
    program, wanted, *asked = (ast.unparse(argument).strip("'") for argument in call.args)
    assert program == f"parlmesh-{wanted}"
    modules = chain.from_iterable(SERVER if name == "*SERVER" else (name,) for name in asked)
    needed = set(loaded_with([f"{service}.serve"])) - extra("")
    assert needed <= {distribution_of(module) for module in modules} <= extra("") | extra(wanted)


def test_every_folder_of_plug_ins_has_an_entry_point() -> None:
    files = (ROOT / "parlmesh").glob("*/plugin.py")
    assert PROJECT["entry-points"]["parlmesh.plugins"] == {
        file.parent.name: f"parlmesh.{file.parent.name}.plugin:plugin" for file in files
    }


def test_what_is_declared_is_imported() -> None:
    imported = {distribution_of(module) for module, _ in imports()}
    assert extra("") | extra("server") | extra("cli") | extra("charts") <= imported


def test_a_missing_package_is_looked_for_in_an_extra_that_has_it() -> None:
    for module, name in _EXTRAS.items():
        assert distribution_of(module) in extra(name), module
    for service in ("scheduler", "learner", "actor", "relay"):
        assert extra("server") <= extra(service)
    assert {distribution_of(module) for module in SERVER} <= extra("server")


def test_the_base_is_numpy_grpc_protobuf_and_little_else() -> None:
    small = {"googleapis-common-protos", "pydantic", "pyyaml", "xxhash"}
    assert extra("") == {"numpy", "grpcio", "protobuf"} | small


@pytest.fixture
def scheduler_address(tmp_path: Path) -> Iterator[str]:
    """A fleet of one worker, started by another process than its user."""
    program = (
        "import sys\n"
        "from parlmesh.client.sync import Controller\n"
        "with Controller() as controller:\n"
        "    controller.initialize(1)\n"
        "    print(controller.address, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as fleet:
        assert fleet.stdout is not None
        yield fleet.stdout.readline().strip()
        fleet.communicate(timeout=60)


def run(python: Path, program: str, folder: Path, timeout: float = 60) -> str:
    ran = subprocess.run([python, "-c", program], cwd=folder, capture_output=True, text=True, timeout=timeout)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.e2e
def test_a_task_runs_from_an_sdk_without_what_services_need(scheduler_address: str) -> None:
    program = TASK.format(absent=ABSENT, address=scheduler_address)
    assert run(Path(sys.executable), program, ROOT) == "{'word': 'hello'}\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_task_runs_from_a_fresh_installation(scheduler_address: str, tmp_path: Path) -> None:
    """Prints what the installation weighs: `pytest -s`."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=120)
    python = tmp_path / "venv/bin/python"
    folder = Path(run(python, "import sysconfig; print(sysconfig.get_path('purelib'))", tmp_path).strip())
    before = {path.name for path in folder.iterdir()}
    command = [str(python), "-m", "pip", "install", "--quiet", "--constraint", f"{ROOT / 'constraints.txt'}", str(ROOT)]
    installed = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    if installed.returncode and re.search(r"connection|Could not find a version|timed out", installed.stderr, re.I):
        pytest.skip("no package index answers")
    assert installed.returncode == 0, installed.stderr
    sizes = {
        path.name: sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        for path in folder.iterdir()
        if path.name not in before
    }
    for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:12]:
        print(f"{size / 1e6:8.1f} MB  {name}")
    print(f"{sum(sizes.values()) / 1e6:8.1f} MB  in all")
    found = run(python, "from importlib.metadata import distributions as d; print(*(x.name for x in d()))", tmp_path)
    names = {canonicalize_name(name) for name in found.split()}
    services = extra("learner") | extra("actor") | extra("scheduler") | extra("cli")
    assert names & (services - extra("")) == set()
    program = TASK.format(absent=(), address=scheduler_address)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ran = subprocess.run(
        [python, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert ran.stdout == "{'word': 'hello'}\n", ran.stderr


def test_the_oldest_grpc_that_is_allowed_is_one_that_the_stubs_take() -> None:
    stub = (ROOT / "parlmesh/v1/scheduler_service_pb2_grpc.py").read_text()
    (generated,) = re.findall(r"GRPC_GENERATED_VERSION = '([\d.]+)'", stub)
    assert f"grpcio>={generated}" in PROJECT["dependencies"]
