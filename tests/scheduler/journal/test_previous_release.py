"""A journal that the scheduler of the release before wrote and was killed over: `previous/journal.db`.

It holds four tasks that ended, three that slept or waited for a slot, one of them more urgent, and one that depends on
the last. tests/e2e/test_upgrade.py runs that release itself.
"""

import shutil
from collections import Counter
from pathlib import Path

from scheduler.config import SchedulerConfig
from scheduler.core.core import Core
from scheduler.core.sessions import Hello
from scheduler.core.task import Priority
from scheduler.store import SqliteStore

JOURNAL = Path(__file__).parent / "previous" / "journal.db"


def test_nothing_of_the_last_releases_journal_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.sqlite"
    shutil.copy(JOURNAL, path)
    store = SqliteStore(path)
    opened = store.open(2e9)
    core = Core(SchedulerConfig(), now=0.0, wall_time=2e9, lease_floor=opened.lease_floor)
    unreadable = core.recover(opened.batches, 0.0)
    store.close()
    assert unreadable.described == []
    names = [f"client-701bdc8b-{number}" for number in range(1, 9)]
    tasks = [core.task(name) for name in names]
    states = Counter(task.state.name for task in tasks)
    assert states["SUCCEEDED"] == 4
    assert states["WAITING"] == 1
    assert states["RUNNING"] + states["QUEUED"] == 3
    assert [task.kind for task in tasks] == ["echo"] * 3 + ["sleep"] * 4 + ["echo"]
    assert tasks[4].priority == Priority.HIGH
    assert tasks[7].dependencies == (names[6],)
    # And they can be given out.
    core.connect(Hello(1, "a", slots=8, kinds=("echo", "sleep")), 100.0)
    core.report(1, 100.0, credits=8)
    core.tick(200.0, 2e9 + 200.0)
    assert core.take_actions()
