"""The evidence as one self-contained HTML page, and its rows and lines as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

from einmal.evidence.environment import RunEnvironment
from einmal.evidence.page import document, table, verdict
from einmal.verify.evidence import Evidence, NotedFault, WorkloadEvidence
from einmal.verify.picture import NARROW_WIDTH, draw
from einmal.verify.verdict import RunVerdict, definition

HEADS = ("workload", "acknowledged", "failed", "unknown", "written", "read", "anomalies")
_LISTED_MAX: Final = 30
"""Maximum number of faults that are read one by one."""
_ERRORS_MAX: Final = 5
_OF_ONE: Final = re.compile(
    r", broker \d+$| by [\d.]+ s\b|: a flush takes [\d.]+ s more$|(?<= is )[\d.]+ s (?=ahead$|behind$)"
)
"""Which broker, how long and how far: of one fault, not of its kind."""
_BROKER: Final = re.compile(r"\bbroker \d+")
_WORDS = {RunVerdict.HOLDS: "It holds.", RunVerdict.ANOMALY: "Anomaly.", RunVerdict.UNKNOWN: "Not enough evidence."}


def rows(workloads: Iterable[WorkloadEvidence]) -> list[tuple[str, ...]]:
    """A row for each workload: operations by their outcome, acknowledged records, and records that were read."""
    return [(workload.name, *(f"{count:,}" for count in _counts(workload))) for workload in workloads]


def _counts(workload: WorkloadEvidence) -> tuple[int, ...]:
    anomalies = len(workload.anomalies)
    return workload.acknowledged, workload.failed, workload.unknown, workload.written, workload.read, anomalies


def page(evidence: Evidence, environment: RunEnvironment, left: Sequence[str]) -> str:
    """``left``: what could not be removed."""
    seconds = evidence.seconds_of()
    body = f"""<h1>einmal verify</h1>
{verdict(evidence.verdict.value, _WORDS[evidence.verdict], evidence.sentence)}
{_control(evidence)}
<p class="soft">{escape(evidence.definition)}</p>
{table(HEADS, rows(evidence.workloads), numbers=6)}
{_anomalies(evidence)}
{_client_errors(evidence)}
<h2>Timeline</h2>
<div class="desktop">{draw(seconds, evidence.faults)}</div>
<div class="phone">{draw(seconds, evidence.faults, NARROW_WIDTH)}</div>
{faults(evidence.faults)}
<h2>Settings</h2>
{_facts({"client": evidence.client, "time": f"{evidence.seconds:g} s", "seed": str(evidence.seed)})}
<h3>Durability of the topics</h3>
<p>The verdict is about these settings: they decide which acknowledged records survive a crash.</p>
{_facts(evidence.durability)}
<h3>Cluster</h3>
{_facts(evidence.cluster)}
<h2>Not tested</h2>
{_list(evidence.not_tested)}
<h2>Repeat it</h2>
<p><code>{escape(environment.command)}</code></p>
<p>{escape(environment.text())} The same seed draws the same values, faults and pauses;
the timing of the machine differs.</p>
{"<h2>Left behind</h2>" + _list(left) if left else ""}"""
    return document(f"einmal verify: {evidence.verdict.value}", body)


def faults(noted: Sequence[NotedFault]) -> str:
    """All of them in order; below the number of each kind, by what it disturbs, where they are many."""
    lines = "".join(f"<li>{fault.seconds:.1f} s: {escape(fault.text)}</li>" for fault in noted)
    if len(noted) <= _LISTED_MAX:
        return f"<ol>{lines}</ol>"
    counts = []
    for of in sorted({fault.of for fault in noted if fault.of}):
        kinds = Counter(_BROKER.sub("a broker", _OF_ONE.sub("", fault.text)) for fault in noted if fault.of == of)
        rows = [f"{count:,} × {kind}" for kind, count in kinds.most_common()]
        counts.append(f'<h3>{escape(of.capitalize())}</h3><div class="columns">{_list(rows)}</div>')
    return f"{''.join(counts)}<details><summary>All {len(noted):,}, in order</summary><ol>{lines}</ol></details>"


def _control(evidence: Evidence) -> str:
    if evidence.control is None:
        return ""
    mistakes = "; ".join(workload.mistake for workload in evidence.workloads)
    text = f"Negative control {evidence.control}: {mistakes}. An anomaly is the expected result."
    return f"<p><b>{escape(text)}</b></p>"


def _anomalies(evidence: Evidence) -> str:
    parts = []
    for workload in evidence.workloads:
        kind = ""
        for anomaly in workload.shown(evidence.began):
            if anomaly.kind != kind:
                kind = anomaly.kind
                parts.append(f"<h3>{escape(workload.name)}: {anomaly.count} × {escape(kind)}</h3>")
                parts.append(f'<p class="soft">{escape(definition(kind))}</p>')
            parts.append(f"<p>{escape(anomaly.detail)}</p>")
            parts.append("<ul>" + "".join(f"<li><code>{escape(op)}</code></li>" for op in anomaly.operations) + "</ul>")
    return "<h2>Counter-examples</h2>" + "\n".join(parts) if parts else ""


def _client_errors(evidence: Evidence) -> str:
    lines = [line for workload in evidence.workloads for line in workload.frequent_errors(_ERRORS_MAX)]
    return f"<h2>Errors of clients</h2>{_list(lines)}" if lines else ""


def _facts(facts: Mapping[str, str]) -> str:
    return table(("", ""), list(facts.items()))


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
