import sqlite3
from pathlib import Path

from parlmesh.dashboard.fleet_history import KEPT_SECONDS, MOST_POINTS, SAMPLE_SECONDS, History, Sample


def sample(time: float) -> Sample:
    return Sample(time, 1.5, 2, 3, 4, 5)


def test_numbers_outlive_the_page(tmp_path: Path) -> None:
    history = History(tmp_path / "deep" / "page.sqlite")
    history.add(sample(100.0))
    history.add(sample(105.0))
    history.close()
    again = History(tmp_path / "deep" / "page.sqlite")
    assert list(again.recent) == [sample(100.0), sample(105.0)]
    again.close()


def test_a_sample_is_due_every_few_seconds_and_when_the_clock_was_set_back() -> None:
    history = History(None)
    assert history.due(100.0)
    history.add(sample(100.0))
    assert not history.due(100.0 + SAMPLE_SECONDS / 2)
    assert history.due(100.0 + SAMPLE_SECONDS)
    assert history.due(50.0)


def test_memory_and_file_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "page.sqlite"
    history = History(file)
    history.add(sample(0.0))
    history.close()
    history = History(file)
    for number in range(MOST_POINTS + 5):
        history.add(sample(KEPT_SECONDS + 1 + number))
    assert len(history.recent) == MOST_POINTS
    history.close()
    with sqlite3.connect(file) as database:
        assert database.execute("SELECT MIN(time) FROM samples").fetchone()[0] > 0
