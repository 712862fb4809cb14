import json
import subprocess
import sys
from pathlib import Path

import pytest

from parlmesh.testing import wait_until
from tools.bench.ground.measuring import (
    Findings,
    Measurement,
    MeasurementFailed,
    end_group,
    in_turns,
    last_object,
    run_in_turns,
    run_once,
)

PYTHON = Path(sys.executable)


def _measurement(name: str, code: str, runs: int = 1, limit_seconds: float = 30.0, **more: str | bool) -> Measurement:
    return Measurement(name, ("-c", code), runs, limit_seconds, **more)  # type: ignore[arg-type]


def _run(measurements: list[Measurement], findings: Findings) -> list[str]:
    said: list[str] = []
    run_in_turns(measurements, {}, findings, quiet_seconds=0.0, say=said.append, settle=lambda limit: 0.0)
    return said


def test_runs_alternate_between_measurements_until_each_has_had_its_own() -> None:
    order = in_turns([_measurement("a", "", 3), _measurement("b", "", 1), _measurement("c", "", 2)])
    assert [(turn, measurement.name) for turn, measurement in order] == [
        (0, "a"),
        (0, "b"),
        (0, "c"),
        (1, "a"),
        (1, "c"),
        (2, "a"),
    ]


def test_the_result_is_the_last_json_object_whatever_is_printed_around_it() -> None:
    assert last_object('noise\n{"a": 1}\n{"a": 2}\n[3]\n{broken\n') == {"a": 2}


def test_output_without_an_object_is_a_failure() -> None:
    with pytest.raises(MeasurementFailed, match="printed no JSON object"):
        last_object("12\nnothing\n")


def test_a_seeded_run_gets_its_turn_as_seed() -> None:
    code = 'import json, sys; print(json.dumps({"given": sys.argv[1:]}))'
    assert run_once(_measurement("a", code, seeded=True), PYTHON, 4) == {"given": ["--seed", "4"]}


def test_a_process_that_fails_gives_its_last_lines() -> None:
    with pytest.raises(MeasurementFailed, match=r"^no fleet today$"):
        run_once(_measurement("a", 'import sys; sys.exit("first\\nno fleet today\\n")'), PYTHON, 0)


def test_a_process_that_takes_too_long_is_ended() -> None:
    with pytest.raises(MeasurementFailed, match="no figure within 0 s"):
        run_once(_measurement("a", "import time; time.sleep(600)", limit_seconds=0.1), PYTHON, 0)


def test_a_process_is_ended_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = (
        "import pathlib, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"note = pathlib.Path({str(note)!r})\n"
        "note.with_suffix('.new').write_text(str(child.pid))\n"
        "note.with_suffix('.new').rename(note)\n"
        "child.wait()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, text=True)
    try:
        wait_until(note.exists, 60.0)
    finally:
        end_group(process)
    wait_until(lambda: not _alive(int(note.read_text())), 60.0)


def test_what_failed_is_not_run_again_and_the_others_go_on() -> None:
    findings = Findings()
    said = _run(
        [_measurement("bad", "raise SystemExit('broken')", 3), _measurement("good", "print('{\"n\": 1}')", 3)], findings
    )
    assert findings.reasons == {"bad": "broken"}
    assert len(findings.results["good"]) == 3
    assert sum(line.startswith("bad") for line in said) == 1


def test_what_has_a_reason_already_is_not_run() -> None:
    findings = Findings(reasons={"peer": "not asked for"})
    assert _run([_measurement("peer", "print('{}')")], findings) == []
    assert findings.results == {}


def test_missing_values_are_left_out_of_the_samples() -> None:
    findings = Findings(results={"a": [{"n": 1.0}, {"n": None}, {}, {"n": 3}]})
    samples = findings.samples("a", "n")
    assert samples is not None
    assert samples.values == (1.0, 3.0)
    assert findings.samples("a", "m") is None
    assert findings.samples("b", "n") is None


def test_figures_taken_while_others_worked_are_called_noisy() -> None:
    findings = Findings(others={"calm": 0.1, "loud": 1.5})
    assert findings.noisy == {"loud": 1.5}


def _alive(pid: int) -> bool:
    """A process that ended but was not reaped counts as dead."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_a_result_survives_json() -> None:
    assert run_once(_measurement("a", f"print({json.dumps(json.dumps({'n': 1.5}))})"), PYTHON, 0) == {"n": 1.5}
