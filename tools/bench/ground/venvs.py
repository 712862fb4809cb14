"""A venv for every peer, made on first use and installed again when its requirements change."""

import hashlib
import subprocess
import sys
from pathlib import Path

from .places import PEERS, ROOT

VENVS = ROOT / ".venv-peers"
_INSTALL_SECONDS = 3600.0


class PeerUnavailable(Exception):
    """Why a peer cannot be measured here, in one sentence."""


def peer_python(name: str, *, venvs: Path = VENVS) -> Path:
    """The interpreter of the peer's venv; installs what is missing, which may take minutes."""
    requirements = PEERS / f"requirements-{name}.txt"
    folder = venvs / name
    python, stamp = folder / "bin/python", folder / ".installed"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="ascii").strip() == wanted:
        return python
    print(f"installing {name} into {folder.relative_to(venvs.parent)} ...", flush=True)
    if not python.exists():
        _run(name, sys.executable, "-m", "venv", str(folder))
    install = (str(python), "-m", "pip", "install", "--quiet")
    # First and alone, so that pip takes the CPU build if it can choose.
    for torch in torch_requirement(requirements.read_text(encoding="ascii")):
        _run(name, *install, torch)
    _run(name, *install, "--requirement", str(requirements))
    stamp.write_text(wanted + "\n", encoding="ascii")
    return python


def torch_requirement(requirements: str) -> list[str]:
    """The line that pins torch, if there is one."""
    return [line.strip() for line in requirements.splitlines() if line.startswith("torch==")]


def _run(name: str, *command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise PeerUnavailable(f"{name} could not be installed within {_INSTALL_SECONDS:.0f} s") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise PeerUnavailable(f"{name} could not be installed: {lines[-1] if lines else 'no reason given'}")
