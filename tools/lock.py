"""Writes requirements.lock: the files that a node installs, each with its SHA-256. Needs the package index.

pip resolves within constraints.txt and reports which files it would take, so the hashes are those for this system and
this version of Python; the file's first line names both. torch, and what needs it, is left to a learner's operator.
"""

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXTRAS = ("actor", "cli", "postgres", "scheduler", "security")
FILE = ROOT / "requirements.lock"


def resolved() -> list[dict[str, Any]]:
    """The files that pip would install, from its report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--only-binary", ":all:", "--constraint", str(ROOT / "constraints.txt")]
        command += ["--report", str(report), f"{ROOT}[{','.join(EXTRAS)}]"]
        subprocess.run(command, check=True)
        found: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    return [one for one in found if one["metadata"]["name"] != "parlmesh"]


def text(installed: list[dict[str, Any]]) -> str:
    lines = [
        f"# Made by `make lock` for Python {platform.python_version_tuple()[0]}.{platform.python_version_tuple()[1]} "
        f"on {platform.system()} {platform.machine()}: parlmesh[{','.join(EXTRAS)}].",
        "# pip install --require-hashes -r requirements.lock && pip install --no-deps parlmesh",
    ]
    for one in sorted(installed, key=lambda one: str(one["metadata"]["name"]).lower()):
        name, version = one["metadata"]["name"], one["metadata"]["version"]
        sha256 = one["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name}=={version} --hash=sha256:{sha256}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(resolved()))
