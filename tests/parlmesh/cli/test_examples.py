"""Examples in --help use existing commands, and each command accepts its examples as written."""

import shlex

import pytest
import typer
from typer.core import TyperGroup

from parlmesh.cli.__main__ import app
from parlmesh.cli.examples import EXAMPLES, commands_of

COMMANDS = [name for name, _ in commands_of(app)]
# Used by a person, or by another program with its own protocol.
LIVE = {"dashboard", "play", "usi"}
LINES = [line for lines in EXAMPLES.values() for line in lines]


def test_no_example_uses_a_removed_command() -> None:
    assert sorted(EXAMPLES.keys() - set(COMMANDS)) == []


@pytest.mark.parametrize("line", LINES)
def test_an_example_is_accepted_as_it_stands(line: str) -> None:
    """Parsed by the command itself, without being run."""
    program, *words = shlex.split(line)
    assert program == "parlmesh"
    command = typer.main.get_command(app)
    context = command.make_context("parlmesh", [], resilient_parsing=True)
    while isinstance(command, TyperGroup):
        command = command.commands[words.pop(0)]
    command.make_context(command.name or "", words, parent=context)


def test_every_command_has_an_answer_for_programs() -> None:
    silent = [name for name in COMMANDS if name not in LIVE and not _has_json(name.split())]
    assert silent == []


def _has_json(words: list[str]) -> bool:
    command = typer.main.get_command(app)
    for word in words:
        assert isinstance(command, TyperGroup)
        command = command.commands[word]
    return any("--json" in parameter.opts for parameter in command.params)
