"""Prints federations, rounds and updates."""

import time
from collections import Counter
from collections.abc import Sequence

from parlmesh.cli.screen.ages import age_of
from parlmesh.cli.screen.output_tables import enum_word, print_table, say
from parlmesh.harmless_text import indented
from parlmesh.v1 import federation_service_pb2 as pb


def sentence(federation: pb.Federation) -> str:
    """The state of a federation in one line."""
    state = enum_word(pb.FederationState.Name(federation.state), "FEDERATION_STATE_")
    text = (
        f"{federation.federation_id} is {state}: round {federation.round}, {federation.aggregated_rounds} aggregated,"
        f" model version {federation.policy_version} ({federation.digest[:12]})"
    )
    return f"{text}; {federation.reason}" if federation.reason else text


def headline(metrics: object) -> tuple[str, float] | None:
    """Name and value of the metric that shows how good the model is."""
    found = dict(metrics)  # type: ignore[call-overload]
    for name in ("evaluation/accuracy", "evaluation/return", "evaluation/loss", "fit/loss"):
        if name in found:
            return name.partition("/")[2], float(found[name])
    return None


def print_federations(federations: Sequence[pb.Federation]) -> None:
    """One line per federation, and below the table the reasons that some of them give."""
    now = time.time()
    rows = [
        (
            each.federation_id,
            enum_word(pb.FederationState.Name(each.state), "FEDERATION_STATE_"),
            str(each.round),
            str(each.aggregated_rounds),
            str(each.policy_version or "–"),
            str(dict(each.configuration).get("task", "–")),
            age_of(each.create_time, now),
        )
        for each in federations
    ]
    columns = ("federation", "state", ">round", ">aggregated", ">version?", "task?", "made?")
    print_table(columns, rows, nothing="no federation yet")
    for each in federations:
        if each.reason:
            say(f"{each.federation_id}: {each.reason}")


def print_rounds(rounds: Sequence[pb.Round]) -> None:
    """One line per round."""
    rows = []
    for each in rounds:
        accepted = sum(not update.refusal for update in each.updates)
        refused = Counter(update.refusal for update in each.updates if update.refusal)
        shown = headline(each.metrics)
        rows.append(
            (
                str(each.number),
                enum_word(pb.RoundState.Name(each.state), "ROUND_STATE_"),
                f"{each.seconds:.3f}",
                str(accepted),
                ", ".join([*(f"{count} {reason}" for reason, count in sorted(refused.items())), *_unlisted(each)])
                or "–",
                f"{shown[0]} {shown[1]:.4g}" if shown else "–",
                str(each.policy_version or "–"),
            )
        )
    columns = (">round", "state?", ">seconds?", ">accepted", "refused", "model", ">version?")
    print_table(columns, rows, nothing="no rounds yet")
    if failure := _last_failure(rounds):
        say(indented(failure))


def _last_failure(rounds: Sequence[pb.Round]) -> str:
    """The message of the newest failed task; empty if none failed."""
    for each in sorted(rounds, key=lambda each: each.number, reverse=True):
        for update in each.updates:
            if update.refusal == "TASK_FAILED" and update.message:
                return f"round {each.number}, {update.node_id}: {update.message}"
    return ""


def _unlisted(each: pb.Round) -> list[str]:
    return [f"{each.unlisted_updates} not listed"] if each.unlisted_updates else []


def print_updates(rounds: Sequence[pb.Round]) -> None:
    """One line per update."""
    rows = [
        (
            str(each.number),
            update.node_id,
            update.refusal or "accepted",
            f"{update.node_weight:.4f}",
            f"{update.samples:,}",
            f"{update.norm:.4g}",
            update.message or ", ".join(update.notes) or "–",
        )
        for each in rounds
        for update in each.updates
    ]
    columns = (">round", "node", "result", ">weight?", ">samples?", ">norm?", "remark")
    print_table(columns, rows, nothing="no updates yet")
