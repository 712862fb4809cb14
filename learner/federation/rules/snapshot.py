"""The state of the rounds as one JSON object, in any phase: a compacted journal starts with it. Pure."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from .evaluation import Evaluation
from .events import Evaluated, Stop
from .history import History
from .masked_round import MaskedRound, NodeKeys, NodeShares
from .nodes.node_strikes import Strike
from .nodes.selection import Nonces
from .progress import Progress
from .records import Answer, Assignment, Counted, FederationState, RoundRecord, RoundState, UpdateRecord

# Named as in journals on disk: the code's names have no underscores.
_PLAIN = (
    "reason",
    "version",
    "digest",
    "round",
    "aggregated",
    "deadline",
    "_wanted",
    "_abandoned_in_a_row",
    "_started",
    "_entropy",
    "_wall_time",
)
# Older nonces only tell a late update from a foreign one.
_NONCES_KEPT = 2_000


def state_of(core: Progress) -> dict[str, Any]:
    """Everything that `restore` needs."""
    who = core.participants
    return {
        **{name: getattr(core, name.removeprefix("_")) for name in _PLAIN},
        "phase": core.phase.value,
        "state": core.state.value,
        "nodes": list(core.able_nodes),
        "history": [_record(record) for record in core.history],
        "_numbers": who.numbers,
        "_failed": who.failed,
        "assignments": _rows(who.assignments.values()),
        "answers": _rows(who.answers.values()),
        "early": _rows(who.early.values()),
        "counted": _rows(core.counted),
        "strikes": {node: asdict(strike) for node, strike in core.eligibility.strikes.by_node.items()},
        "spent": core.spending.by_node,
        "waiting": list(core.evaluation.waiting),
        # Journals of earlier releases have this key.
        "judged": _rows(core.evaluation.found),
        "stop": None if core.stop is None else asdict(core.stop),
        "asked": _rows(list(who.nonces.asked.values())[-_NONCES_KEPT:]),
        "accepted": list(who.nonces.accepted)[-_NONCES_KEPT:],
        "nonces": [who.nonces.count, who.nonces.nodes],
        "masking": asdict(core.masking),
    }


def restore(core: Progress, state: dict[str, Any]) -> None:
    """The inverse of `state_of`."""
    for name in _PLAIN:
        setattr(core, name.removeprefix("_"), state[name])
    core.phase = type(core.phase)(state["phase"])
    core.state = FederationState(state["state"])
    core.able_nodes = tuple(state["nodes"])
    core.history = History(_round(row) for row in state["history"])
    who = core.participants
    who.numbers, who.failed = state["_numbers"], state["_failed"]
    who.assignments = {row["node_id"]: Assignment(**row) for row in state["assignments"]}
    who.answers = {row["nonce"]: Answer(**row) for row in state["answers"]}
    who.early = {row["nonce"]: Answer(**row) for row in state["early"]}
    core.counted = tuple(Counted(**row) for row in state["counted"])
    core.eligibility.strikes.by_node = {node: Strike(**row) for node, row in state["strikes"].items()}
    core.spending.by_node = dict(state["spent"])
    core.evaluation = Evaluation(set(state["waiting"]), [Evaluated(**row) for row in state["judged"]])
    core.stop = None if state["stop"] is None else Stop(**state["stop"])
    who.nonces = Nonces(
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
    """Like asdict, without its deep copies."""
    return [{name: getattr(each, name) for name in each.__slots__} for each in found]


def _record(record: RoundRecord) -> dict[str, Any]:
    (row,) = _rows([record])
    return {**row, "state": record.state.value, "updates": _rows(record.updates)}


def _round(row: dict[str, Any]) -> RoundRecord:
    updates = [UpdateRecord(**update) for update in row["updates"]]
    return RoundRecord(**{**row, "state": RoundState(row["state"]), "updates": updates})
