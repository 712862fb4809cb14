"""Every limit on the length, number and size of incoming values, in one place. docs/errors.md lists them.

Code that takes input from outside checks it here first, so every journal, index and answer built from it is bounded.
Limits that an operator may set are in the configuration instead.
"""

from typing import NamedTuple

from .errors import InvalidInput

LONGEST_SECONDS = 100 * 365 * 86400
LONGEST_RUN_SECONDS = 30 * 86400
# Protobuf reads 100 messages within each other; the streams and calls that carry a payload have a few of their own.
MOST_LEVELS = 84
"""Messages within each other that a payload's parameters may take; each list takes LIST_LEVELS, each object
OBJECT_LEVELS."""
LIST_LEVELS, OBJECT_LEVELS = 2, 3
MOST_TENSORS = 256
"""Arrays in one message."""
# Characters of a text that a refusal quotes.
SHOWN = 40


class Limit(NamedTuple):
    """A range from `least` to `most`, in `unit` if that is set. Values outside are refused, or cut if `cut` is true."""

    field: str
    of: str
    least: float
    most: float
    unit: str
    reason: str = "OUT_OF_RANGE"
    cut: bool = False

    def check(self, amount: float, owner: str = "") -> None:
        """Checks a number or a count. `owner` names its owner in the error message."""
        # Written this way so that NaN is refused too.
        if not self.least <= amount <= self.most:
            raise self._refusal(amount, self.field, owner)

    def check_text(self, text: str, owner: str = "") -> None:
        size = len(text) if self.unit == "characters" else len(text.encode(errors="replace"))
        if not self.least <= size <= self.most:
            shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
            raise self._refusal(size, f'{self.field} "{shown}"', owner)
        if not text.isprintable():
            subject = f"{self.field} {text!a}" + (f" of {owner}" if owner else "")
            raise InvalidInput(
                f"{subject} has unprintable characters; names must not",
                reason="UNPRINTABLE",
                field=self.field,
            )

    def shorten(self, text: str) -> str:
        """Truncates the text, for fields that are not worth a refusal."""
        return text if len(text) <= self.most else f"{text[: int(self.most) - 1]}…"

    def _refusal(self, amount: float, subject: str, owner: str) -> InvalidInput:
        verb = "is" if self.unit in ("", "s") else "has"
        subject = f"{subject} of {owner}" if owner else subject
        measured = f"{verb} {amount} {self.unit}".rstrip()
        wanted = f"it must {'be' if verb == 'is' else 'have'} {self.range}"
        return InvalidInput(
            f"{subject} {measured}; {wanted}",
            reason=self.reason,
            field=self.field,
            value=f"{amount}",
            least=f"{self.least}",
            most=f"{self.most}",
        )

    @property
    def range(self) -> str:
        return f"{self.least} to {self.most}"


TASK_ID = Limit("task_id", "task", 0, 256, "characters", "NAME_TOO_LONG")
KIND = Limit("kind", "task, actor", 1, 128, "bytes", "NAME_TOO_LONG")
SUBMITTER = Limit("submitter", "task, stream", 0, 256, "characters", "NAME_TOO_LONG")
NODE_ID = Limit("node_id", "placement, actor", 0, 128, "characters", "NAME_TOO_LONG")
ACTOR_ID = Limit("actor_id", "actor", 1, 256, "characters", "NAME_TOO_LONG")
LABEL_NAME = Limit("label name", "placement, actor", 0, 128, "bytes", "NAME_TOO_LONG")
LABEL_VALUE = Limit("label value", "placement, actor", 0, 128, "bytes", "NAME_TOO_LONG")
LABELS = Limit("labels", "placement, actor", 0, 64, "entries", "TOO_MANY_LABELS")
KINDS = Limit("kinds", "actor", 1, 256, "entries", "TOO_MANY_KINDS")
# Small enough that a list of a thousand actors takes only seconds to read.
ABILITIES = Limit("kinds and labels", "actor", 1, 16_384, "bytes", "HELLO_TOO_LARGE")
TASKS = Limit("tasks", "request", 0, 10_000, "entries", "TOO_MANY_TASKS")
TASK_IDS = Limit("task_ids", "request", 0, 10_000, "entries", "TOO_MANY_NAMES")
ACTOR_IDS = Limit("actor_ids", "request", 1, 10_000, "entries", "TOO_MANY_NAMES")
BLOBS = Limit("names", "request", 0, 10_000, "entries", "TOO_MANY_NAMES")
HOLD_SECONDS = Limit("seconds", "hold of blobs", 0, 3600, "s")
LEASES = Limit("leases", "actor's message", 0, 100_000, "entries", "TOO_MANY_LEASES")
RESULTS = Limit("results", "actor's message", 0, 20_000, "entries", "TOO_MANY_RESULTS")
PARTS = Limit("parts", "message of updates", 0, 4_096, "entries", "TOO_MANY_PARTS")
PRIORITY = Limit("priority", "task", 1, 5, "", "UNKNOWN_PRIORITY")
MAX_ATTEMPTS = Limit("max_attempts", "task", 0, (1 << 32) - 1, "", "INVALID_ATTEMPTS")
QUEUE_TIMEOUT = Limit("queue_timeout", "task", 0, LONGEST_SECONDS, "s", "INVALID_TIMEOUT")
RUN_TIMEOUT = Limit("run_timeout", "task", 1e-9, LONGEST_RUN_SECONDS, "s", "INVALID_TIMEOUT")
SLOTS = Limit("slots", "actor", 1, 10_000, "", "INVALID_SLOTS")
INCARNATION = Limit("incarnation", "actor", 0, (1 << 63) - 1, "", "INVALID_INCARNATION")
CREDITS = Limit("credits", "actor", 0, 100_000, "", cut=True)
REASON = Limit("reason", "quarantine, strike", 1, 500, "characters", cut=True)
RAN = Limit("ran", "result", 0, LONGEST_SECONDS, "s", cut=True)
FAILURE_REASON = Limit("failure.reason", "result", 0, 128, "characters", cut=True)
FAILURE_MESSAGE = Limit("failure.message", "result", 0, 4096, "characters", cut=True)

ALL: tuple[Limit, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Limit))


def table() -> list[str]:
    """The table of limits in docs/errors.md."""
    rows = ["| field | of | least | most | beyond it |", "|---|---|---|---|---|"]
    for limit in ALL:
        unit = f" {limit.unit}" if limit.unit else ""
        beyond = "cut" if limit.cut else f"`{limit.reason}`"
        rows.append(f"| `{limit.field}` | {limit.of} | {limit.least} | {limit.most}{unit} | {beyond} |")
    return rows
