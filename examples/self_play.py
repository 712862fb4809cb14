"""Train a Connect Four player against its own past selves, for a few steps.

python examples/self_play.py [STEPS]
"""

import subprocess
import sys
import tempfile


def main() -> None:
    """The preset sets the opponents' shares, the network and the league; without --steps it trains to full strength."""
    steps = sys.argv[1] if len(sys.argv) > 1 else "4096"
    command = [sys.executable, "-m", "parlmesh.cli", "up", "--plain", "--free-ports", "--no-dashboard", "--no-goal"]
    with tempfile.TemporaryDirectory() as folder:
        command += ["--config", "selfplay-connect-four", "--steps", steps, "--runs-dir", folder]
        subprocess.run(command, check=True)  # noqa: S603  # our own program


if __name__ == "__main__":
    main()
