"""The documentation as a site: the reference is complete, dead links fail, and the tutorial's programs run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import reference

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()


def build(folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mkdocs", "build"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    (tmp_path / "docs/reference").mkdir(exist_ok=True)
    for name, page in reference.PAGES.items():
        (tmp_path / "docs/reference" / name).write_text(page())
    return tmp_path


@pytest.mark.slow
def test_the_site_builds_and_a_dead_link_would_fail_it(site: Path) -> None:
    answer = build(site)
    assert answer.returncode == 0, answer.stderr
    assert (site / "site/reference/commands.html").exists()
    with (site / "docs/index.md").open("a") as page:
        page.write("\n[nowhere](nowhere.md)\n")
    assert build(site).returncode != 0


def test_the_reference_has_every_setting_command_and_method() -> None:
    settings, commands, contract = (page() for page in reference.PAGES.values())
    for key in ("`queue.max_tasks`", "`training.ppo.epochs`", "`limits.prefetch`", "`most_actors`"):
        assert key in settings, key
    for command in ("### parlmesh up", "### parlmesh tasks submit", "### parlmesh certs renew", "--param"):
        assert command in commands, command
    for file in (ROOT / "protos/parlmesh/v1").glob("*.proto"):
        for method in re.findall(r"rpc (\w+)", file.read_text()):
            assert f"rpc {method}(" in contract


def test_every_block_of_the_first_pages_is_run_or_marked_as_output() -> None:
    for name in ("tutorial", "concepts", "grpcurl", "index", "troubleshooting", "upgrading"):
        page = (ROOT / "docs" / f"{name}.md").read_text()
        assert set(re.findall(r"^```(\w*)\n(?:.|\n)*?^```$", page, re.MULTILINE)) <= {"sh", "python", "text"}, name


@pytest.mark.e2e
def test_the_tutorial_s_program_prints_what_it_says(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)
    answer = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert answer.returncode == 0, answer.stderr
    assert f"prints\n\n```text\n{answer.stdout}```" in TUTORIAL


def test_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    table = (ROOT / "README.md").read_text().split("## Why not …")[1].split("\n## ")[0].split("|---|---|---|")[1]
    figures = set(re.findall(r"\d+(?:,\d{3})+|\d+\.\d+", table))
    assert len(figures) >= 9
    assert figures <= set(re.findall(r"\d+(?:,\d{3})+|\d+\.\d+", (ROOT / "docs" / "benchmarks.md").read_text()))
