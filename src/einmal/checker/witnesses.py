"""The operations that show an anomaly, as few as do: who wrote the values, and who read them first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from einmal.checker.history import Anomaly, History, Op, OpOutcome, Value

_OUTCOMES = {OpOutcome.OK: "acknowledged", OpOutcome.FAIL: "failed", OpOutcome.INFO: "unknown outcome"}


class Witnesses:
    """Looks up the operations of a history by the values of anomalies. A value is found by its first word, too."""

    def __init__(self, history: History, anomalies: Iterable[Anomaly]) -> None:
        all_anomalies = list(anomalies)
        wanted = dict.fromkeys(value for anomaly in all_anomalies for value in anomaly.values)
        named = dict.fromkeys(op_id for anomaly in all_anomalies for op_id in anomaly.ops)
        self._ops: dict[int, Op] = {}
        self._writers: dict[str, dict[int, None]] = defaultdict(dict)
        self._reads: dict[str, dict[tuple[object, int], int]] = defaultdict(dict)
        for op_id, op in enumerate(history.ops) if all_anomalies else ():
            if self._matches(op_id, op, wanted) or op_id in named:
                self._ops[op_id] = op

    def _matches(self, op_id: int, op: Op, wanted: dict[str, None]) -> bool:
        is_wanted = False
        for send in op.sends:
            for name in _names(send.value, wanted):
                self._writers[name][op_id] = None
                is_wanted = True
        for poll in op.polls if op.read_committed else ():
            for offset, value in poll.records:
                for name in _names(value, wanted):
                    is_wanted = self._reads[name].setdefault((poll.key, offset), op_id) == op_id or is_wanted
        return is_wanted

    def of(self, anomaly: Anomaly) -> list[int]:
        """Return positions in the history, in its order. Empty: the values were never written."""
        op_ids = dict.fromkeys(anomaly.ops)
        for value in anomaly.values:
            op_ids |= self._writers.get(value, {})
            op_ids |= dict.fromkeys(self._reads.get(value, {}).values())
        return sorted(op_ids)

    def text(self, op_id: int, anomaly: Anomaly, since: float = 0.0) -> str:
        """One line about an operation: of its sends and reads those that matter. ``since``: 0 of the clock."""
        op = self._ops[op_id]
        wanted = dict.fromkeys(anomaly.values)
        sends = [send for send in op.sends if _names(send.value, wanted)] or op.sends
        parts = [
            f"send {send.value!r} to {send.key}" + ("" if send.offset is None else f" (offset {send.offset})")
            for send in sends
        ]
        for poll in op.polls:
            records = [record for record in poll.records if _names(record[1], wanted)]
            parts += [f"read {value!r} from {poll.key} at offset {offset}" for offset, value in records]
        if not parts:
            parts = [f"read {len(poll.records)} records from {poll.key}" for poll in op.polls]
        ended = "" if op.ended is None or op.ended == op.began else f" to {op.ended - since:.3f}"
        return f"{op.began - since:.3f}{ended} s, process {op.process}, {_kind(op)}: {'; '.join(parts)}"


def _kind(op: Op) -> str:
    if not op.sends:
        return "reader" if op.read_committed else "uncommitted reader"
    if op.transactional:
        outcome = {OpOutcome.OK: "committed", OpOutcome.FAIL: "aborted"}.get(op.outcome, "unknown outcome")
        return f"transaction, {outcome}"
    return f"write, {_OUTCOMES[op.outcome]}"


def _names(value: Value, wanted: dict[str, None]) -> list[str]:
    first_word = value.partition(" ")[0]
    names = [value] if value in wanted else []
    return [*names, first_word] if first_word != value and first_word in wanted else names
