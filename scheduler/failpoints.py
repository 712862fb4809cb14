"""Named places at which a test makes the scheduler fail: around every step from a decision to its durable record.

They are off, and cost one comparison, unless the process was started with PARLMESH_FAILPOINTS; no caller can switch one
on. The form is `name=action` or `name=action@n`, separated by `;`; an action takes place once, at the n-th pass (1):

- `kill`: SIGKILL to this process;
- `error`, `memory`: OSError, MemoryError;
- `defect`: an exception that nobody expects;
- `sleep:0.5`: blocks for that many seconds.

Tests in this process use `arm` and `disarm`. `passed` counts how often each place was passed while armed, so that a
test can check that its fault took place.
"""

import os
import signal
import time
from collections import Counter
from typing import Final

VARIABLE = "PARLMESH_FAILPOINTS"

# In the order of recording.
AFTER_DECISION: Final = "after_decision"
BEFORE_ENCODE: Final = "before_encode"
AFTER_ENCODE: Final = "after_encode"
BEFORE_COMMIT: Final = "before_commit"
AFTER_COMMIT: Final = "after_commit"
BEFORE_RELEASE: Final = "before_release"
# During a compaction: each row read, each part written, the switch, each deletion.
COMPACT_BEGIN: Final = "compact_begin"
COMPACT_READ: Final = "compact_read"
COMPACT_WRITE: Final = "compact_write"
COMPACT_BEFORE_SWITCH: Final = "compact_before_switch"
COMPACT_AFTER_SWITCH: Final = "compact_after_switch"
COMPACT_DELETE: Final = "compact_delete"

RECORDING = (AFTER_DECISION, BEFORE_ENCODE, AFTER_ENCODE, BEFORE_COMMIT, AFTER_COMMIT, BEFORE_RELEASE)
COMPACTION = (
    COMPACT_BEGIN,
    COMPACT_READ,
    COMPACT_WRITE,
    COMPACT_BEFORE_SWITCH,
    COMPACT_AFTER_SWITCH,
    COMPACT_DELETE,
)
NAMES = frozenset((*RECORDING, *COMPACTION))


class InjectedDefect(Exception):
    """An error such as an undiscovered defect would raise."""


# Checked before every `hit`.
armed = False
passed: Counter[str] = Counter()
_actions: dict[tuple[str, int], str] = {}


def arm(text: str) -> None:
    """Replaces earlier settings; ValueError for a name or an action that does not exist."""
    global armed
    found: dict[tuple[str, int], str] = {}
    for part in filter(None, text.split(";")):
        name, _, action = part.strip().partition("=")
        action, _, count = action.partition("@")
        if name not in NAMES or action.partition(":")[0] not in ("kill", "error", "memory", "defect", "sleep"):
            raise ValueError(f"{VARIABLE} has {part!r}; names are {', '.join(sorted(NAMES))}")
        found[name, int(count or 1)] = action
    _actions.clear()
    _actions.update(found)
    passed.clear()
    armed = bool(found)


def disarm() -> None:
    arm("")


def hit(name: str) -> None:
    """Called only when `armed`."""
    passed[name] += 1
    action = _actions.get((name, passed[name]))
    if action is None:
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "error":
        raise OSError(f"injected at {name}")
    if action == "memory":
        raise MemoryError(f"injected at {name}")
    if action == "defect":
        raise InjectedDefect(f"injected at {name}")
    time.sleep(float(action.partition(":")[2]))


arm(os.environ.get(VARIABLE, ""))
