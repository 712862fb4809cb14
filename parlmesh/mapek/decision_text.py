"""Cycles and decisions in words."""

import json
from dataclasses import asdict
from typing import Any

from .types import CycleReport, Decision, Health, Status


def summary(report: CycleReport) -> list[str]:
    """One line for the cycle, each unknown node, each symptom and each decision."""
    healthy, sick, unknown = (len(report.of(each)) for each in Health)
    done = len(report.actions)
    lines = [
        f"cycle {report.cycle}: {len(report.nodes)} nodes in {report.seconds:.2f} s; "
        f"{healthy} healthy, {sick} sick, {unknown} unknown; {done} action{'' if done == 1 else 's'}"
    ]
    if report.trouble:
        lines.append(f"  this cycle was not saved: {report.trouble}")
    for node in report.nodes:
        if node.health is Health.UNKNOWN:
            lines.append(f"  {node.node} unknown: {node.why_unknown}")
        lines += [f"  {node.node} {each.severity}: {each.why}" for each in node.symptoms]
        for decision in node.decisions:
            if decision.status is Status.HELD:
                lines.append(f"    nothing done for {decision.symptom.name}: {decision.reason}")
            else:
                told = f"; {decision.error}" if decision.error else ""
                lines.append(f"    {decision.action} ({decision.status}): {decision.reason}{told}  [{decision.id}]")
    return lines


def explained(decision: Decision) -> str:
    """One decision: its inputs, rule, choice, expected effect and measured effect."""
    symptom = decision.symptom
    lines = [
        f"decision   {decision.id}, cycle {decision.cycle}, node {decision.node}",
        f"symptom    {symptom.name}, {symptom.severity}: {symptom.why}",
        f"rule       {decision.rule or 'none'}" + (f", context {decision.context}" if decision.context else ""),
        f"choice     {decision.action or 'nothing'}" + (f", of the kind {decision.kind}" if decision.kind else ""),
        f"because    {decision.reason}",
    ]
    standing = decision.inputs.get("standing") or {}
    for each in decision.inputs.get("candidates") or ():
        name = each["action"]
        place = f", standing {standing[name]:.4g}" if name in standing else ""
        lines.append(f"candidate  {name}: {each['successes']:g} of {each['tries']:g} tries worked{place}")
    if decision.inputs.get("policy"):
        lines.append(f"policy     {decision.inputs['policy']}")
    for name, why in (decision.inputs.get("refused") or {}).items():
        lines.append(f"refused    {name}: {why}")
    if decision.inputs.get("metrics"):
        lines.append(f"inputs     {json.dumps(decision.inputs['metrics'])}")
    lines += [
        f"expected   {decision.expected or 'not said'}",
        f"measured   {decision.measured or 'not yet'}",
        f"outcome    {decision.status}" + (f" after {decision.seconds:.2f} s" if decision.seconds else ""),
    ]
    if decision.error:
        lines.append(f"error      {decision.error}")
    return "\n".join(lines)


def as_data(report: CycleReport) -> dict[str, Any]:
    """The cycle as one JSON object."""
    return {
        "cycle": report.cycle,
        "started": report.started,
        "seconds": report.seconds,
        "nodes": [asdict(node) for node in report.nodes],
        "trouble": report.trouble,
    }
