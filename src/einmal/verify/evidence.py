"""Evidence of a run: its figures, anomalies with the operations that show them, settings, and what was not tested."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from einmal.checker.history import Anomaly, History, Op, OpOutcome
from einmal.checker.witnesses import Witnesses
from einmal.evidence.environment import RunEnvironment
from einmal.verify.verdict import RunVerdict, definition

_SHOWN: Final = 3
"""Examples of each kind of anomaly."""
_OPS_SHOWN: Final = 8


class NotedFault(NamedTuple):
    """``seconds`` since the workloads began. ``of``: what it disturbs, such as brokers; empty: nothing."""

    seconds: float
    text: str
    of: str = ""


class Second(NamedTuple):
    """``latency_ms``: median of the operations that were acknowledged in it; None: there was none."""

    acknowledged: int
    latency_ms: float | None


@dataclass(frozen=True, slots=True)
class ShownAnomaly:
    """``count``: of its kind. ``operations``: a line for each that shows it."""

    kind: str
    count: int
    detail: str
    operations: tuple[str, ...]


class OpCounts:
    """Counts the operations of a history that pass: those that write by their outcome, and their records.

    ``written``: acknowledged records. ``read``: records that readers got.

    ``began``: of the first operation, in seconds.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[OpOutcome] = Counter()
        self.written = 0
        self.read = 0
        self.began = 0.0

    def counted(self, ops: Iterable[Op]) -> Iterator[Op]:
        """The same operations."""
        for number, op in enumerate(ops):
            if not number:
                self.began = op.began
            if sends := op.sends:
                self.outcomes[op.outcome] += 1
                self.written += len(sends) if op.outcome is OpOutcome.OK else 0
            self.read += sum(len(poll.records) for poll in op.polls)
            yield op


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadEvidence:
    """Operations that write, by their outcome.

    ``written``: acknowledged records. ``read``: records that readers got.
    """

    name: str
    mistake: str
    acknowledged: int
    failed: int
    unknown: int
    written: int
    read: int
    anomalies: tuple[Anomaly, ...]
    history: History
    client_errors: Mapping[str, int]

    @classmethod
    def of(
        cls,
        name: str,
        history: History,
        anomalies: Iterable[Anomaly],
        *,
        mistake: str = "",
        client_errors: Mapping[str, int] | None = None,
        counts: OpCounts | None = None,
    ) -> WorkloadEvidence:
        """``counts``: of the history; None: it is iterated for them."""
        if counts is None:
            counts = OpCounts()
            deque(counts.counted(history.ops), maxlen=0)
        return cls(
            name=name,
            mistake=mistake,
            acknowledged=counts.outcomes[OpOutcome.OK],
            failed=counts.outcomes[OpOutcome.FAIL],
            unknown=counts.outcomes[OpOutcome.INFO],
            written=counts.written,
            read=counts.read,
            anomalies=tuple(anomalies),
            history=history,
            client_errors=dict(client_errors or {}),
        )

    def fields(self, since: float) -> dict[str, object]:
        """The document for programs."""
        return {
            "name": self.name,
            "mistake": self.mistake,
            "acknowledged": self.acknowledged,
            "failed": self.failed,
            "unknown": self.unknown,
            "written": self.written,
            "read": self.read,
            "client_errors": dict(self.client_errors),
            "anomalies": [
                {
                    "kind": anomaly.kind,
                    "count": anomaly.count,
                    "definition": definition(anomaly.kind),
                    "detail": anomaly.detail,
                    "operations": list(anomaly.operations),
                }
                for anomaly in self.shown(since)
            ],
        }

    def frequent_errors(self, most: int) -> list[str]:
        """Return the errors of clients that came most often, each on a line."""
        counts = Counter(self.client_errors).most_common(most)
        return [f"{self.name}: {count:,} × {text}" for text, count in counts]

    def shown(self, since: float, examples_max: int = _SHOWN) -> Iterator[ShownAnomaly]:
        """A few of each kind, those with the fewest values first."""
        kinds: dict[str, list[Anomaly]] = defaultdict(list)
        for anomaly in self.anomalies:
            kinds[anomaly.kind].append(anomaly)
        examples = [
            (len(anomalies), anomaly)
            for anomalies in kinds.values()
            for anomaly in sorted(anomalies, key=_size)[:examples_max]
        ]
        witnesses = Witnesses(self.history, [anomaly for _, anomaly in examples])
        for count, anomaly in examples:
            ops = witnesses.of(anomaly)[:_OPS_SHOWN]
            lines = tuple(witnesses.text(op_id, anomaly, since) for op_id in ops)
            yield ShownAnomaly(anomaly.kind, count, anomaly.detail, lines)


def _size(anomaly: Anomaly) -> int:
    """Those that no operation shows come last."""
    return len(anomaly.values) or len(anomaly.ops) or sys.maxsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """``began``: on the clock of the histories. ``has_broker_faults``: a broker was killed, paused or restarted.

    ``has_network_faults``: connections of the run's clients were disturbed. ``has_partitions``: brokers were cut off
    from one another. ``has_clock_steps``: clocks of brokers jumped. ``not_compared``: parts of a pipeline's
    output, in words.
    """

    verdict: RunVerdict
    sentence: str
    definition: str
    workloads: tuple[WorkloadEvidence, ...]
    faults: tuple[NotedFault, ...]
    client: str
    control: str | None
    seed: int
    seconds: float
    began: float
    not_compared: str
    cluster: Mapping[str, str]
    durability: Mapping[str, str]
    has_broker_faults: bool
    has_network_faults: bool
    has_partitions: bool
    has_clock_steps: bool

    @property
    def not_tested(self) -> tuple[str, ...]:
        return (
            *(() if self.has_broker_faults else ("failures of brokers: none was killed or stopped",)),
            *(() if self.has_network_faults else ("lost answers, broken connections and delays",)),
            "loss of power, disks that lose what they have flushed, and several machines at once",
            *(() if self.has_partitions else ("partitions of the network between brokers",)),
            *(() if self.has_clock_steps else ("clocks that jump",)),
            *((self.not_compared,) if self.not_compared else ()),
            "effects outside of the log, such as databases and other services",
            "other clients, other settings, and more than the load of this run",
        )

    def seconds_of(self) -> list[Second]:
        """Throughput and latency, second by second, of all workloads."""
        counts: dict[int, int] = defaultdict(int)
        latencies: dict[int, list[float]] = defaultdict(list)
        for workload in self.workloads:
            for op in workload.history.ops:
                if op.sends and op.outcome is OpOutcome.OK and op.ended is not None:
                    second = int(op.ended - self.began)
                    counts[second] += len(op.sends)
                    latencies[second].append(1000 * (op.ended - op.began))
        return [
            Second(counts[second], median(latencies[second]) if second in latencies else None)
            for second in range(max([*counts, 0]) + 1)
        ]

    def fields(self, environment: RunEnvironment, left: Sequence[str]) -> dict[str, object]:
        """The document for programs. ``left``: what could not be removed."""
        return {
            "verdict": self.verdict.value,
            "exit_status": self.verdict.exit_status,
            "sentence": self.sentence,
            "definition": self.definition,
            "control": self.control,
            "client": self.client,
            "seed": self.seed,
            "seconds": self.seconds,
            "workloads": [workload.fields(self.began) for workload in self.workloads],
            "faults": [fault._asdict() for fault in self.faults],
            "timeline": [second._asdict() for second in self.seconds_of()],
            "cluster": dict(self.cluster),
            "durability": dict(self.durability),
            "not_tested": list(self.not_tested),
            "left_behind": list(left),
            "started_at": environment.started_at,
            "command": environment.command,
            "versions": environment.versions,
            "machine": environment.machine,
        }
