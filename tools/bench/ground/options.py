"""The command line that every benchmark has."""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .places import ROOT


@dataclass(frozen=True, slots=True)
class Options:
    """The measurements to make, and how long to wait for a quiet machine."""

    quick: bool
    peers: tuple[str, ...]
    quiet_seconds: float
    command: str
    """Repeats the benchmark."""
    more: argparse.Namespace
    """The benchmark's own options."""


def parse_options(
    description: str,
    *,
    known: Sequence[str],
    usual: Sequence[str],
    argv: Sequence[str] | None = None,
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> Options:
    """`known` are all peers, `usual` those measured by default; `add_arguments` adds options."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="under a minute when the peers are installed")
    parser.add_argument(
        "--peers",
        default=",".join(usual) or "none",
        metavar="NAMES",
        help=f"none, all, or some of {','.join(known)}; missing ones are installed (default: %(default)s)",
    )
    parser.add_argument(
        "--wait-quiet",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="most time per run to wait for other processes and to repeat disturbed runs (default: 0)",
    )
    add_arguments(parser)
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = parser.parse_args(given)
    try:
        peers = chosen_peers(arguments.peers, known)
    except ValueError as error:
        parser.error(str(error))
    script = Path(sys.argv[0]).resolve()
    named = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script
    return Options(
        quick=arguments.quick,
        peers=peers,
        quiet_seconds=arguments.wait_quiet,
        command=shlex.join(["python", str(named), *given]),
        more=arguments,
    )


def chosen_peers(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """The chosen peers, in the order of `known`."""
    if text == "none":
        return ()
    if text == "all":
        return tuple(known)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise ValueError(f"--peers must be none, all, or some of {', '.join(known)}; got {name!r}")
    return tuple(name for name in known if name in names)
