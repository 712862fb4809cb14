"""Programs without a package they need: one sentence, exit code 2, at once."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
WITHOUT = """
import runpy, sys
module, *missing = sys.argv.pop(1).split(",")
for name in missing:
    sys.modules[name] = None
sys.path.insert(0, {root!r})
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "TMPDIR": str(cwd)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize(
    ("module", "missing", "sentence"),
    [
        ("parlmesh.cli", "typer", "error: parlmesh needs typer: pip install 'parlmesh[cli]'"),
        (
            "scheduler",
            "prometheus_client",
            "error: parlmesh-scheduler needs prometheus_client: pip install 'parlmesh[scheduler]'",
        ),
        ("actor", "safetensors", "error: parlmesh-actor needs safetensors: pip install 'parlmesh[actor]'"),
        (
            "learner",
            "gymnasium,tensorboard",
            "error: parlmesh-learner needs gymnasium, tensorboard: pip install 'parlmesh[learner]'",
        ),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, module: str, missing: str, sentence: str
) -> None:
    arguments = ["--help"] if module == "parlmesh.cli" else []
    ended = run("-c", WITHOUT.format(root=str(ROOT)), f"{module},{missing}", *arguments, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (2, f"{sentence}\n")


@pytest.mark.parametrize(
    ("program", "missing", "sentence"),
    [
        ("parlmesh.train('CartPole-v1')", "torch", "parlmesh.train needs torch: pip install 'parlmesh[learner]'"),
        ("parlmesh.load_policy('x')", "safetensors", "load_policy needs safetensors: pip install 'parlmesh[actor]'"),
        ("parlmesh.fleet()", "gymnasium", "a fleet on this machine needs gymnasium: pip install 'parlmesh[actor]'"),
        ("import parlmesh.joblib", "joblib", "parlmesh.joblib needs joblib: pip install 'parlmesh[joblib]'"),
    ],
)
def test_a_call_from_python_names_the_missing_package_too(
    tmp_path: Path, program: str, missing: str, sentence: str
) -> None:
    (tmp_path / "program.py").write_text(f"import parlmesh\n{program}\n")
    ended = run("-c", WITHOUT.format(root=str(ROOT)), f"program,{missing}", cwd=tmp_path)
    assert ended.stderr.splitlines()[-1].endswith(sentence), ended.stderr


def test_a_service_starts_by_its_package_from_any_folder(tmp_path: Path) -> None:
    ended = run("-m", "parlmesh.scheduler", "--help", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "listen.port" in ended.stdout


def test_a_program_without_a_guard_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        textwrap.dedent("""
            from parlmesh.client.sync import Controller

            class Double:
                kind, runs_in = "double", "thread"

                def run(self, parameters, tensors, context):
                    return {"n": 2 * parameters["n"]}

            with Controller() as controller:
                controller.initialize(1, actor={"handlers": {"double": "program:Double"}})
        """)
    )
    ended = run("program.py", cwd=tmp_path)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert "local-0 refused its configuration: handlers.double = 'program:Double' cannot be imported" in last
    assert 'put the code that starts it under `if __name__ == "__main__":`' in last


@pytest.mark.slow
def test_the_log_that_an_error_names_exists(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text("import os\nprint('I die here', flush=True)\nos._exit(1)\n")
    (tmp_path / "program.py").write_text(
        textwrap.dedent("""
            import re
            from parlmesh.client.sync import Controller
            from parlmesh.errors import FailedPrecondition

            if __name__ == "__main__":
                with Controller() as controller:
                    try:
                        controller.initialize(1, actor={"handlers": {"dying": "dying:Dying"}})
                    except FailedPrecondition as error:
                        print(error)
                        print(open(re.search(r"log ([^;)]*)", str(error))[1]).read())
        """)
    )
    ended = run("program.py", cwd=tmp_path)
    assert "local-0 ended 5 times in the same way before it served: I die here" in ended.stdout
    assert ended.stdout.count("I die here") == 6
    assert ended.returncode == 0
