"""One benchmark from its command line to its last line: installs, measures in turns, prints."""

import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .machine import facts
from .measuring import Findings, Measurement, run_in_turns
from .options import Options
from .orphans import adopt_orphans, end_orphans
from .report import Row, json_line, shown, table
from .venvs import PeerUnavailable, peer_python


def measure(measurements: Sequence[Measurement], options: Options) -> Findings:
    """Everything that was asked for; whatever was not asked for, or is unavailable, has a reason instead."""
    # Ends as on Ctrl-C, so that the process that is being measured ends too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    findings = Findings()
    interpreters: dict[str, Path] = {"": Path(sys.executable)}
    unavailable: dict[str, str] = {}
    for peer in dict.fromkeys(measurement.peer for measurement in measurements if measurement.peer):
        if peer not in options.peers:
            unavailable[peer] = f"not asked for (--peers {peer})"
            continue
        try:
            interpreters[peer] = peer_python(peer)
        except PeerUnavailable as reason:
            unavailable[peer] = str(reason)
    for measurement in measurements:
        if measurement.peer in unavailable:
            findings.reasons[measurement.name] = unavailable[measurement.peer]
    adopt_orphans()
    run_in_turns(measurements, interpreters, findings, quiet_seconds=options.quiet_seconds, say=_say, clear=end_orphans)
    return findings


def print_report(
    rows: Sequence[Row],
    derived: Mapping[str, float | None],
    findings: Findings,
    options: Options,
    *,
    packages: Sequence[str],
    notes: Sequence[str] = (),
) -> None:
    """The table, then the line of JSON."""
    machine = facts(packages)
    _say("")
    _say(table(rows))
    for key, value in derived.items():
        _say(f"{key} {'-' if value is None else shown(value)}")
    for note in notes:
        _say(note)
    _say(", ".join(f"{name} {value}" for name, value in machine.items()))
    if findings.noisy:
        _say(f"PROVISIONAL: other processes were busy before or during some runs (cores in use): {findings.noisy}")
    _say(f"repeat with: {options.command}")
    context: dict[str, Any] = {
        "reasons": findings.reasons,
        "noisy": findings.noisy,
        "quick": options.quick,
        "command": options.command,
        "machine": machine,
    }
    _say(json_line(rows, derived, context))


def _say(text: str) -> None:
    print(text, flush=True)
