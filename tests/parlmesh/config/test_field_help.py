"""Help texts stand under the fields, also in parent classes, and cost nothing until requested."""

import subprocess
import sys

from pydantic import Field

from parlmesh.config import Config
from parlmesh.config.field_help import help_of
from parlmesh.config.fields import leaves


class Base(Config):
    inherited: int = 1
    """From the
    parent."""
    other: int = 2


class Section(Base):
    own: int = 3
    """Its own."""
    named: int = Field(default=4, description="given by name")
    bare: int = 5

    def method(self) -> int:
        return self.own


class Whole(Config):
    section: Section = Section()


def test_a_key_has_the_text_under_its_field() -> None:
    meanings = {leaf.key: leaf.meaning for leaf in leaves(Whole)}
    assert meanings == {
        "section.inherited": "From the parent.",
        "section.other": "",
        "section.own": "Its own.",
        "section.named": "given by name",
        "section.bare": "",
    }


def test_a_model_without_source_has_no_texts() -> None:
    space: dict[str, type[Config]] = {"Config": Config}
    exec('class Typed(Config):\n    x: int = 1\n    """unseen"""\n', space)
    assert help_of(space["Typed"], "x") == ""


def test_no_source_is_read_before_help_is_asked_for() -> None:
    look = (
        "import inspect\n"
        "def read(*given): raise AssertionError('a source was read')\n"
        "inspect.getsource = inspect.getsourcelines = inspect.findsource = read\n"
        "import learner.config, actor.config, scheduler.config\n"
    )
    ended = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
