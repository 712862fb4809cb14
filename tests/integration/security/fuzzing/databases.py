"""SQLite files of a scheduler, of MAPE-K's loops and nodes, and of the dashboard."""

import time
from pathlib import Path
from typing import Any

from parlmesh.dashboard.fleet_history import History, Sample
from parlmesh.mapek.config import BreakerConfig, DetectionConfig
from parlmesh.mapek.knowledge import Knowledge
from parlmesh.mapek.node.analysis import analyse
from parlmesh.mapek.node.node_memory import NodeState
from parlmesh.mapek.node.undo_log import Deeds
from parlmesh.mapek.planning.circuit_breaker import Breaker
from parlmesh.mapek.types import CycleReport, Decision, Health, NodeReport, Status, Symptom
from scheduler.store.sqlite import SqliteStore

from .file_damage import Format, damaged_rows, forget

_SYMPTOM = Symptom("cpu_high", "cpu_percent", 97.0, 90.0, "warning", "above 90")
_STATUSES = (Status.WORKED, Status.FAILED, Status.STARTED, Status.HELD)


def knowledge(folder: Path) -> Format:
    """Reads it as a loop does at its start, and as `parlmesh mapek history` does."""
    file = folder / "knowledge.sqlite"
    with Knowledge(file) as kept:
        decisions = [
            Decision(f"d{number}", number, "n1", _SYMPTOM, "restart", "service", "cpu_*", "edge", status=status)
            for number, status in enumerate(_STATUSES)
        ]
        kept.save(decisions, owed={"d2": {"unit": "web"}})
        kept.save_breakers({"restart": Breaker(BreakerConfig(), 2, 50.0)})
        kept.end_cycle(CycleReport(3, 10.0, 1.0, [NodeReport("n1", Health.SICK, {}, (_SYMPTOM,))]), {"n1": 1})

    def read(file: Path) -> object:
        forget(file)
        with Knowledge(file) as kept:
            told = [
                kept.owed(), kept.breakers(BreakerConfig(), 100.0), kept.nodes(0.0), kept.last_actions(100.0),
                kept.candidates("cpu_*", ["restart"], "edge", "n1"), kept.decisions(100), kept.health(100),
                kept.what_worked(),
            ]  # fmt: skip
            kept.own()
            cycle = kept.next_cycle()
            kept.end_cycle(CycleReport(cycle, 20.0, 1.0, [NodeReport("n2", Health.HEALTHY)]), {})
            return told, [repr(decision) for decision in kept.decisions(100)], kept.decision("d1")

    return Format(file, read, damaged_rows(folder / "scratch"))


def node_memory(folder: Path) -> Format:
    """An actor's memory of its node: detectors' states, answers, the lease, and deeds that may have to be undone."""
    kept = NodeState(folder, "n1", time.monotonic)
    detection = DetectionConfig(metrics=("cpu_percent",))

    def look(answer: str) -> object:
        def change(states: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
            changed, symptoms, scores = analyse({"cpu_percent": 50.0}, (), detection, states, 1_000.0)
            return changed, {"symptoms": [each.to_dict() for each in symptoms], "scores": scores}

        return kept.step("loop", answer, change)

    for number in range(3):
        look(f"answer {number}")
    kept.acquire("loop", 30.0)
    deeds = Deeds(kept)
    for number in range(3):
        deeds.begin(f"d{number}", "service", "web", {"unit": "web"}, {"state": "active"}, -5.0)
    deeds.done("d1", {"state": "active"}, 5.0)
    (file,) = folder.glob("*.sqlite")

    def read(file: Path) -> object:
        forget(file)
        lease = kept.acquire("other", 1.0)
        found = [deeds.find("d0"), deeds.take("d1"), deeds.confirm("d2"), deeds.take_overdue(), deeds.next_seconds()]
        return lease.seconds, kept.answered("answer 1"), look("answer 2"), look("answer 9"), found

    return Format(file, read, damaged_rows(folder / "scratch"))


def fleet_history(folder: Path) -> Format:
    """The dashboard's database."""
    file = folder / "history.sqlite"
    kept = History(file)
    for number in range(4):
        kept.add(Sample(10.0 * number, 1.5, number, 2, 3, 0))
    kept.close()

    def read(file: Path) -> object:
        forget(file)
        found = History(file)
        try:
            if found.due(1_000.0):
                found.add(Sample(1_000.0, 1.5, 1, 2, 3, 0))
            return [round(value, 1) for sample in found.recent for value in sample]
        finally:
            found.close()

    return Format(file, read, damaged_rows(folder / "scratch"))


def scheduler_store(folder: Path) -> Format:
    """Reads it as it is, then repairs it."""
    file = folder / "scheduler.sqlite"
    store = SqliteStore(file, synchronous="normal")
    list(store.open(1_000.0).batches)
    for number in range(5):
        store.append(bytes([number]) * 40, 1)
    store.close()
    beside = {each: each.read_bytes() for each in folder.iterdir() if each != file}

    def read(file: Path) -> object:
        damaged = file.read_bytes()
        for each in set(folder.iterdir()) - {file, folder / "scratch"}:
            each.unlink()
        for each, content in beside.items():
            each.write_bytes(content)
        _open(file, repair=True)
        for each in set(folder.iterdir()) - {file, folder / "scratch"}:
            each.unlink()
        for each, content in beside.items():
            each.write_bytes(content)
        file.write_bytes(damaged)
        return _open(file, repair=False)

    return Format(file, read, damaged_rows(folder / "scratch"))


def _open(file: Path, *, repair: bool) -> int:
    store = SqliteStore(file, synchronous="normal", repair=repair)
    try:
        return sum(len(batch) for batch in store.open(2_000.0).batches)
    finally:
        store.close()
