"""Makes the README's pictures from a real run: docs/images/up.svg and docs/images/learning-curve.png."""

import asyncio
import io
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from rich.console import Console

from parlmesh.cli.screen.fleet_feed import follow_training, poll_scheduler
from parlmesh.cli.screen.fleet_view import FleetView
from parlmesh.cli.screen.live_table import WIDTH, render
from parlmesh.rpc.task_group import first_of
from parlmesh.security import SecurityConfig
from parlmesh.testing import wait_until

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
GOOD_RETURN = 300.0


def address(file: Path) -> str:
    def port() -> int:
        return int(yaml.safe_load(file.read_text())["listen"]["port"]) if file.exists() else 0

    return f"127.0.0.1:{wait_until(port, 60)}"


async def drawn_well_on_its_way(view: FleetView, began: float) -> str:
    """The table at the first moment when all actors work and the policy has learned something."""
    while True:
        progress = view.training.progress if view.training is not None and not view.ended else None
        good = progress is not None and progress.HasField("evaluation_return") and progress.episode_return > GOOD_RETURN
        if good and view.ready_actors == view.total_actors:
            console = Console(
                record=True,
                width=WIDTH,
                file=io.StringIO(),
                force_terminal=True,
                color_system="truecolor",
                highlight=False,
            )
            console.print(render(view, time.monotonic() - began))
            svg = console.export_svg(title="parlmesh up")
            # The reader's own fixed-width font instead of one from the network.
            return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")
        await asyncio.sleep(0.02)


async def watch(root: Path) -> str:
    began = time.monotonic()
    view = FleetView(root.name, expected_actors=2, supervised=True)
    learner, scheduler = address(root / "learner.yaml"), address(root / "scheduler.yaml")
    drawing = asyncio.ensure_future(drawn_well_on_its_way(view, began))
    await first_of(follow_training(view, learner, SecurityConfig()), poll_scheduler(view, scheduler, SecurityConfig()))
    if not drawing.done():
        sys.exit("the run ended before it was worth a picture")
    return drawing.result()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "cartpole"
        command = [sys.executable, "-m", "parlmesh.cli", "up", "--free-ports", "--plain", "--keep"]
        up = subprocess.Popen([*command, "--run-id", root.name, "--runs-dir", folder])
        try:
            picture = asyncio.run(asyncio.wait_for(watch(root), 120))
        finally:
            up.terminate()
            up.wait(30)
        IMAGES.mkdir(parents=True, exist_ok=True)
        (IMAGES / "up.svg").write_text(picture)
        shutil.copyfile(root / "learning-curve.png", IMAGES / "learning-curve.png")


if __name__ == "__main__":
    main()
