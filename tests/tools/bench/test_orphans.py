import subprocess
import sys

from tools.bench.ground.places import ROOT

# In a separate process: adopting and ending orphans would affect other tests.
CODE = """
import subprocess, sys, psutil
from tools.bench.ground.orphans import adopt_orphans, end_orphans
adopt_orphans()
child = "import time; time.sleep(600)"
parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)"
subprocess.run([sys.executable, "-c", parent], check=True)
print(len(psutil.Process().children()))
end_orphans(grace_seconds=0.0)
print(len(psutil.Process().children()))
"""


def test_what_a_child_left_behind_is_adopted_and_ended() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["1", "0"]
