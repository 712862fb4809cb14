import os
import subprocess
import sys

SCRIPT = """
import os
from parlmesh.dashboard.serve import give_way
give_way()
give_way()
print(os.getpriority(os.PRIO_PROCESS, 0))
"""


def test_the_page_gives_way_to_processes_that_work() -> None:
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    assert int(found.stdout) == max(10, os.getpriority(os.PRIO_PROCESS, 0))
