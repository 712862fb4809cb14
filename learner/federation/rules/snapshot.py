"""The state of the rounds as one JSON object, in whatever phase: what a compacted journal begins with. Pure."""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .evaluation import Judging
from .events import Evaluated, Stop
from .masking import MaskedRound, NodeKeys, NodeShares
from .records import Answer, Assignment, Counted, FederationState, RoundRecord, RoundState, UpdateRecord
from .selection import Nonces
from .strikes import Strike

if TYPE_CHECKING:
    from .rounds import Rounds

_PLAIN = (
    "reason",
    "version",
    "digest",
    "round",
    "aggregated",
    "deadline",
    "_numbers",
    "_failed",
    "_wanted",
    "_abandoned_in_a_row",
    "_started",
    "_entropy",
    "_wall_time",
)
# Older nonces only tell a late update from a foreign one.
_NONCES_KEPT = 2_000


def state_of(core: "Rounds") -> dict[str, Any]:
    """All that `restore` needs."""
    nonces = core._nonces
    return {
        **{name: getattr(core, name) for name in _PLAIN},
        "phase": core.phase.value,
        "state": core.state.value,
        "nodes": list(core._nodes),
        "history": [_record(record) for record in core.history],
        "assignments": _rows(core.assignments.values()),
        "answers": _rows(core.answers.values()),
        "early": _rows(core._early.values()),
        "counted": _rows(core._counted),
        "strikes": {node: asdict(strike) for node, strike in core._strikes.by_node.items()},
        "spent": core.spending.by_node,
        "waiting": list(core._judging.waiting),
        "judged": _rows(core._judging.found),
        "stop": None if core._stop is None else asdict(core._stop),
        "asked": _rows(list(nonces.asked.values())[-_NONCES_KEPT:]),
        "accepted": list(nonces.accepted)[-_NONCES_KEPT:],
        "nonces": [nonces.count, nonces.nodes],
        "masking": asdict(core.masking),
    }


def restore(core: "Rounds", state: dict[str, Any]) -> None:
    """The inverse."""
    for name in _PLAIN:
        setattr(core, name, state[name])
    core.phase = type(core.phase)(state["phase"])
    core.state = FederationState(state["state"])
    core._nodes = tuple(state["nodes"])
    core.history = deque((_round(row) for row in state["history"]), maxlen=core.history.maxlen)
    core.assignments = {row["node_id"]: Assignment(**row) for row in state["assignments"]}
    core.answers = {row["nonce"]: Answer(**row) for row in state["answers"]}
    core._early = {row["nonce"]: Answer(**row) for row in state["early"]}
    core._counted = tuple(Counted(**row) for row in state["counted"])
    core._strikes.by_node = {node: Strike(**row) for node, row in state["strikes"].items()}
    core.spending.by_node = dict(state["spent"])
    core._judging = Judging(set(state["waiting"]), [Evaluated(**row) for row in state["judged"]])
    core._stop = None if state["stop"] is None else Stop(**state["stop"])
    core._nonces = Nonces(
        OrderedDict((row["nonce"], Assignment(**row)) for row in state["asked"]),
        OrderedDict.fromkeys(state["accepted"]),
        *state["nonces"],
    )
    masking = state.get("masking", {})
    core.masking = MaskedRound(
        **{
            **masking,
            "keys": {node: NodeKeys(**row) for node, row in masking.get("keys", {}).items()},
            "shares": {node: NodeShares(**row) for node, row in masking.get("shares", {}).items()},
        }
    )


def _rows(found: Iterable[Any]) -> list[dict[str, Any]]:
    """As asdict, without its deep copies."""
    return [{name: getattr(each, name) for name in each.__slots__} for each in found]


def _record(record: RoundRecord) -> dict[str, Any]:
    (row,) = _rows([record])
    return {**row, "state": record.state.value, "updates": _rows(record.updates)}


def _round(row: dict[str, Any]) -> RoundRecord:
    updates = [UpdateRecord(**update) for update in row["updates"]]
    return RoundRecord(**{**row, "state": RoundState(row["state"]), "updates": updates})
