"""The checks of ``einmal.checker.log`` as they are defined, in dictionaries and sets, whatever that costs.

Cycles are those of the whole graph, without a look whether there can be one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator

from einmal.checker.cycles import find_cycles
from einmal.checker.history import Anomaly, History, Key, Op, OpOutcome, Poll, Send, Value
from einmal.checker.index import Index


def naive_anomalies(history: History) -> list[Anomaly]:
    index = NaiveIndex(history)
    found: list[Anomaly] = []
    for check in (
        _duplicates,
        _inconsistent_offsets,
        _aborted_reads,
        _garbage_reads,
        _lost_and_unseen,
        _intermediate_reads,
        _torn_transactions,
        _precommitted_reads,
        _poll_order,
        _send_order,
    ):
        found += check(index)
    return found + [cycle.anomaly() for cycle in find_cycles(Index(history)) if not cycle.is_allowed]


class NaiveIndex:
    def __init__(self, history: History) -> None:
        self.history = history
        self.writers: dict[tuple[Key, Value], Op] = {}
        self.visible: dict[tuple[Key, Value], None] = {}
        self.values_at: dict[Key, dict[int, dict[Value, None]]] = defaultdict(lambda: defaultdict(dict))
        self.offsets_of: dict[tuple[Key, Value], dict[int, None]] = defaultdict(dict)
        self.read_up_to: dict[Key, int] = {}
        for op in history.ops:
            for send in op.sends:
                self.writers[send.key, send.value] = op
            for poll in op.polls:
                self._read(op, poll)
        for op in history.ops:
            for send in op.sends:
                if send.offset is not None:
                    self.offsets_of[send.key, send.value][send.offset] = None
                if send.offset is not None and self.is_committed(op, send):
                    self.values_at[send.key][send.offset][send.value] = None
        self.committed_offsets = {
            key: sorted(
                offset
                for offset, values in by_offset.items()
                if any(self.is_visible(key, value) or self._is_written(key, value) for value in values)
            )
            for key, by_offset in self.values_at.items()
        }

    def _read(self, op: Op, poll: Poll) -> None:
        for offset, value in poll.records:
            self.values_at[poll.key][offset][value] = None
            self.offsets_of[poll.key, value][offset] = None
            if op.read_committed:
                self.visible[poll.key, value] = None
                self.read_up_to[poll.key] = max(offset, self.read_up_to.get(poll.key, -1))

    def is_visible(self, key: Key, value: Value) -> bool:
        """A ``read_committed`` reader got it."""
        return (key, value) in self.visible

    def _is_written(self, key: Key, value: Value) -> bool:
        writer = self.writers.get((key, value))
        return writer is not None and writer.outcome is OpOutcome.OK

    def is_committed(self, op: Op, send: Send) -> bool:
        """Acknowledged, or of unknown outcome but seen (in a transaction: any of it)."""
        if op.outcome is not OpOutcome.INFO:
            return op.outcome is OpOutcome.OK
        mates = op.sends if op.transactional else [send]
        return any(self.is_visible(mate.key, mate.value) for mate in mates)

    def offset_of(self, key: Key, value: Value) -> int | None:
        return min(self.offsets_of.get((key, value), ()), default=None)

    def is_skipped(self, key: Key, last: int, following: int) -> bool:
        """Whether committed records are known to lie between two offsets."""
        offsets = self.committed_offsets.get(key, [])
        return bisect_right(offsets, last) < bisect_left(offsets, following)


def _duplicates(index: NaiveIndex) -> Iterator[Anomaly]:
    for (key, value), offsets in index.offsets_of.items():
        if len(offsets) > 1:
            yield Anomaly("duplicate", f"{value} is in {key} at offsets {sorted(offsets)}", (value,))


def _inconsistent_offsets(index: NaiveIndex) -> Iterator[Anomaly]:
    for key, by_offset in index.values_at.items():
        for offset, values in by_offset.items():
            if len(values) > 1:
                yield Anomaly("inconsistent-offsets", f"{key} at {offset} has {sorted(values)}", tuple(values))


def _aborted_reads(index: NaiveIndex) -> Iterator[Anomaly]:
    for (key, value), op in index.writers.items():
        if not index.is_visible(key, value):
            continue
        if op.outcome is OpOutcome.FAIL:
            yield Anomaly("G1a", f"{value} of a failed write was read from {key}", (value,))
        elif op.aborted_later:
            yield Anomaly("phantom-commit", f"{value} was acknowledged as aborted, and was read from {key}", (value,))


def _garbage_reads(index: NaiveIndex) -> Iterator[Anomaly]:
    for key, value in index.visible:
        if (key, value) not in index.writers:
            at = ", ".join(map(str, index.offsets_of[key, value]))
            yield Anomaly("garbage-read", f"{value} was read from {key} at {at}, and nobody sent it there", (value,))


def _lost_and_unseen(index: NaiveIndex) -> Iterator[Anomaly]:
    for (key, value), op in index.writers.items():
        if op.outcome is not OpOutcome.OK or index.is_visible(key, value):
            continue
        offset = index.offset_of(key, value)
        if offset is not None and offset < index.read_up_to.get(key, -1):
            detail = f"{value}, acknowledged at {key} {offset}, was never read, later ones were"
            yield Anomaly("lost-write", detail, (value,))
        elif index.history.is_read_to_the_end:
            yield Anomaly("unseen", f"{value}, acknowledged in {key}, was not seen at the end", (value,))


def _intermediate_reads(index: NaiveIndex) -> Iterator[Anomaly]:
    views = _views(index)
    # A partition's readers, each with what it has read, and from where to where.
    readers = {
        key: [(process, offsets, min(offsets), max(offsets)) for process, offsets in found.items() if offsets]
        for key, found in views.items()
    }
    for op in index.history.ops:
        if not op.transactional or op.outcome is OpOutcome.FAIL:
            continue
        sends: dict[Key, list[Value]] = defaultdict(list)
        for send in op.sends:
            sends[send.key].append(send.value)
        for key, values in sends.items():
            for process, offsets, first, last in readers.get(key, ()):
                missing = [value for value in values if not offsets.keys() & index.offsets_of[key, value].keys()]
                passed = [
                    value
                    for value in missing
                    if (offset := index.offset_of(key, value)) is not None and first <= offset <= last
                ]
                if passed and len(missing) < len(values):
                    detail = f"process {process} saw a transaction in {key} without {passed}"
                    yield Anomaly("G1b", detail, tuple(values))


def _views(index: NaiveIndex) -> dict[Key, dict[int, dict[int, None]]]:
    """Return what each reader that never changed its position has read: key, process, offsets."""
    moved = {
        op.process: None
        for op in index.history.ops
        if op.starts_anew or op.subscribed or op.rebalanced or not op.read_committed
    }
    views: dict[Key, dict[int, dict[int, None]]] = defaultdict(lambda: defaultdict(dict))
    for op in index.history.ops:
        if op.process not in moved:
            for poll in op.polls:
                views[poll.key][op.process].update(dict.fromkeys(offset for offset, _ in poll.records))
    return views


def _torn_transactions(index: NaiveIndex) -> Iterator[Anomaly]:
    if not index.history.is_read_to_the_end:
        return
    for op in index.history.ops:
        if op.transactional:
            seen = [send for send in op.sends if index.is_visible(send.key, send.value)]
            missing = [f"{send.value} in {send.key}" for send in op.sends if send not in seen]
            if seen and missing:
                detail = f"{seen[0].value} in {seen[0].key} is committed, but not {', '.join(missing)}"
                yield Anomaly("torn-transaction", detail, tuple(send.value for send in op.sends))


def _precommitted_reads(index: NaiveIndex) -> Iterator[Anomaly]:
    for op in index.history.ops:
        sent: dict[tuple[Key, Value], None] = {}
        for action in op.actions:
            if isinstance(action, Send):
                sent[action.key, action.value] = None
                continue
            for _, value in action.records:
                if op.transactional and (action.key, value) in sent:
                    detail = f"a transaction read its own {value} from {action.key}"
                    yield Anomaly("precommitted-read", detail, (value,))


def _poll_order(index: NaiveIndex) -> Iterator[Anomaly]:
    positions: dict[int, dict[Key, int]] = defaultdict(dict)
    for op_id, op in enumerate(index.history.ops):
        if op.starts_anew or op.subscribed:
            positions[op.process] = {}
        before = positions[op.process]
        inside: dict[Key, int] = {}
        for poll in op.polls:
            for offset, value in poll.records:
                last, prefix = (None, "") if op.rebalanced else (inside.get(poll.key), "int-")
                if last is None:
                    last, prefix = before.get(poll.key), ""
                inside[poll.key] = offset
                where = f"process {op.process} read {value} at {poll.key} {offset} after {last}"
                if last is None:
                    continue
                if offset <= last:
                    yield Anomaly(f"{prefix}nonmonotonic-poll", where, (value,), (op_id,))
                elif index.is_skipped(poll.key, last, offset):
                    yield Anomaly(f"{prefix}poll-skip", where, (value,), (op_id,))
        before.update(inside)


def _send_order(index: NaiveIndex) -> Iterator[Anomaly]:
    positions: dict[int, dict[Key, int]] = defaultdict(dict)
    for op in index.history.ops:
        if op.outcome is OpOutcome.FAIL:
            continue
        before = positions[op.process]
        inside: dict[Key, int] = {}
        for send in op.sends:
            offset = index.offset_of(send.key, send.value)
            if offset is None:
                continue
            last, prefix = inside.get(send.key), "int-"
            if last is None:
                last, prefix = before.get(send.key), ""
            inside[send.key] = offset
            if last is not None and offset < last:
                yield Anomaly(
                    f"{prefix}nonmonotonic-send",
                    f"process {op.process} sent {send.value} later, but {send.key} has it at {offset}, before {last}",
                    (send.value,),
                )
        before.update(inside)
