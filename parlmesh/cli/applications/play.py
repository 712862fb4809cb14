"""`parlmesh play` and `parlmesh usi`: games against a policy or between two, and a USI engine for shogi programs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from parlmesh.errors import InvalidInput

ModelFile = Annotated[
    Path,
    typer.Option(
        metavar="FILE", help="policy.safetensors, an exported model, or a run's folder for its promoted model"
    ),
]
Saved = Annotated[
    list[Path] | None, typer.Option("--save", metavar="FILE", help="shogi: .kif, .csa, .usi, .svg; repeatable")
]

Simulations = Annotated[
    int, typer.Option(min=0, max=10_000, help="positions the model searches before each move; 0 = no search")
]


def play(
    game: Annotated[str, typer.Argument(help="connect_four, tictactoe or shogi")],
    model: Annotated[
        Path | None, typer.Option(metavar="FILE", help="opponent: a file or a run's folder; without it, random moves")
    ] = None,
    other: Annotated[Path | None, typer.Option(metavar="FILE", help="a second model: watch the two play")] = None,
    second: Annotated[bool, typer.Option("--second", help="let the model move first")] = False,
    seed: Annotated[int, typer.Option(min=0, help="seed of all random choices")] = 0,
    simulations: Simulations = 0,
    save: Saved = None,
    plugin: Annotated[list[str] | None, typer.Option(help="plug-ins that the model needs")] = None,
) -> None:
    """Play a game in the terminal against a model or a random player, or watch two models."""
    from parlmesh.selfplay.terminal_game import Person, Sitter, Sitting, player_from

    if simulations and model is None and other is None:
        text = f"--simulations is {simulations}, but there is no model that could search; name one with --model"
        raise InvalidInput(text, reason="NO_MODEL")
    opposite: Sitter = player_from(other, plugin or [], seed + 1, simulations) if other else Person(sys.stdin)
    players = [player_from(model, plugin or [], seed, simulations), opposite]
    if not second and other is None:
        players.reverse()
    sitting = Sitting(game, players, seed=seed)
    if save and game != "shogi":
        raise InvalidInput(f"only shogi has records; leave --save out for {game}", reason="FORMAT")
    for text in sitting.play():
        typer.echo(text)
    for path in save or ():
        sitting.write(path)
        typer.echo(f"written {path}")


def usi(
    model: ModelFile,
    form: Annotated[str, typer.Option(help="how the model encodes moves: spatial or flat")] = "spatial",
    simulations: Simulations = 0,
    plugin: Annotated[list[str] | None, typer.Option(help="plug-ins that the model needs")] = None,
) -> None:
    """Act as a USI engine on stdin and stdout, for any shogi program."""
    from parlmesh.selfplay.shogi.usi import UsiEngine
    from parlmesh.selfplay.terminal_game import policy_from

    policy, name = policy_from(model, plugin or []), f"parlmesh {model.stem}"
    engine = UsiEngine(policy, form=form, name=name, simulations=simulations)  # type: ignore[arg-type]
    for line in engine.answers(sys.stdin):
        # The program on the other side waits for every line.
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
