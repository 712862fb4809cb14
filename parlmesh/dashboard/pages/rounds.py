"""Federated rounds: which nodes took part, which were refused and why."""

from collections import defaultdict
from typing import Any

from google.protobuf.json_format import MessageToDict

from parlmesh.errors import NotFound
from parlmesh.v1 import federation_service_pb2 as federation_pb
from parlmesh.v1 import metrics_service_pb2 as metrics_pb

from .. import number_format as figures
from ..page_request import View
from .runs import charts

MOST_ROUNDS = 50


async def rounds(view: View) -> dict[str, Any]:
    """The federation and its newest rounds."""
    federation = await view.fleet.federation()
    if federation is None:
        return {"federation": None}
    found = await view.fleet.rounds(MOST_ROUNDS)
    curve = [each for each in reversed(found) if each.seconds]
    numbers: dict[str, dict[int, float]] = defaultdict(dict)
    for each in curve:
        for name, value in MessageToDict(each.metrics).items():
            if isinstance(value, int | float):
                numbers[name][each.number] = value
    return {
        "federation": {
            "id": federation.federation_id,
            "state": figures.federation_state(federation.state),
            "tone": figures.tone(figures.federation_state(federation.state)),
            "round": figures.number(federation.round),
            "made": figures.number(federation.aggregated_rounds),
            "version": figures.number(federation.policy_version),
            "reason": federation.reason,
        },
        "rounds": [round_row(each) for each in found],
        "charts": charts(
            [
                metrics_pb.Series(name=name, steps=sorted(at), values=[at[step] for step in sorted(at)])
                for name, at in sorted(numbers.items())
                if name.startswith("evaluation/")
            ]
        ),
    }


def round_row(found: federation_pb.Round) -> dict[str, Any]:
    """One round with the number of accepted nodes, and refusals by reason."""
    refusals: dict[str, int] = defaultdict(int)
    for update in found.updates:
        if update.refusal:
            refusals[update.refusal] += 1
    state = figures.round_state(found.state)
    accepted = sum(1 for update in found.updates if not update.refusal)
    return {
        "number": found.number,
        "state": state,
        "tone": figures.tone(state),
        "nodes": figures.number(accepted),
        "refused": ", ".join(f"{count} {word}" for word, count in sorted(refusals.items())) or "none",
        "seconds": figures.seconds(found.seconds) if found.seconds else figures.NONE,
        "version": found.policy_version or figures.NONE,
        "unlisted": found.unlisted_updates,
    }


async def one_round(view: View) -> dict[str, Any]:
    """The nodes of one round."""
    wanted = view.whole("number", 10**18)
    found = next((each for each in await view.fleet.rounds(1_000) if each.number == wanted), None)
    if found is None:
        raise NotFound(f"round {wanted} is not among the newest 1,000")
    return {
        "round": round_row(found),
        "started": figures.clock(figures.moment(found.start_time)),
        "metrics": [
            (name, f"{value:,.6g}" if isinstance(value, int | float) else str(value))
            for name, value in sorted(MessageToDict(found.metrics).items())
        ],
        "updates": [
            {
                "node": update.node_id,
                "weight": f"{update.node_weight:.4f}",
                "samples": figures.number(update.counted_samples),
                "norm": f"{update.norm:,.4g}",
                "refusal": update.refusal,
                "message": update.message,
                "notes": ", ".join(update.notes),
            }
            for update in found.updates[:1_000]
        ],
    }
