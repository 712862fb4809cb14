"""The garbage collector leaves imports at the start alone, and works again afterwards."""

import gc
import subprocess
import sys

import pytest

from parlmesh.kept_imports import kept_imports

LOOK = """
import gc
from parlmesh.kept_imports import kept_imports
before = gc.get_freeze_count()
with kept_imports():
    assert not gc.isenabled()
    import decimal, json
assert gc.isenabled()
assert gc.get_freeze_count() > before
"""


def test_nothing_looks_for_garbage_during_the_imports_and_never_again_among_them() -> None:
    # In a separate process: frozen objects stay frozen.
    ended = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr


def test_an_import_that_fails_leaves_the_collector_working() -> None:
    with pytest.raises(ModuleNotFoundError), kept_imports():
        import no_such_module_anywhere  # type: ignore[import-not-found] # noqa: F401
    assert gc.isenabled()
