"""Finds what a log with transactions must never show: a history in, anomalies out.

The classes are after the definitions of Jepsen's Kafka checker, and four are our own: G1b (a reader passed a
transaction and saw a part of it), torn-transaction (a part of it is committed), phantom-commit (what was acknowledged
as aborted is visible) and garbage-read (a value that nobody sent, after Elle's garbage reads). Cycles are in
``cycles``, what is no anomaly but worth knowing in ``report``.

A history is read twice, from its first operation to its last, whatever its length: for the index, and for the checks of
operations. Only where there is a sign of a cycle, the operations around it are read once more, as a graph.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator

from einmal.checker.cycles import InformationFlow, find_cycles
from einmal.checker.history import Anomaly, History, Key, Op, OpOutcome, Send, Value
from einmal.checker.index import ABORTED_LATER, IN_TRANSACTION, VISIBLE, WRITE_FAILED, WRITE_OK, Index, KeyIndex

_OpCheck = Callable[[int, Op], Iterator[Anomaly]]


def find_anomalies(history: History) -> list[Anomaly]:
    """Return the anomalies that must never be, in an order that depends on the history only. Raises ValueSentTwice."""
    index = Index(history)
    anomalies = [
        *_duplicates(index),
        *_inconsistent_offsets(index),
        *_aborted_reads(index),
        *_garbage_reads(index),
        *_lost_and_unseen(index),
    ]
    checks: list[tuple[_OpCheck, list[Anomaly]]] = [
        (_IntermediateReads(index).check, []),
        (_TornTransactions(index).check, []),
        (_precommitted_reads, []),
        (_PollOrder(index).check, []),
        (_SendOrder(index).check, []),
    ]
    flow = InformationFlow(index)
    for op_id, op in enumerate(history.ops):
        flow.add(op_id, op)
        for check, of_check in checks:
            of_check += check(op_id, op)
    anomalies += [anomaly for _, of_check in checks for anomaly in of_check]
    spans = flow.spans()
    return anomalies + [cycle.anomaly() for cycle in (find_cycles(index, spans) if spans else ())]


def find_allowed(history: History) -> list[Anomaly]:
    """Return the anomalies that a log without write isolation may show: others' values between a transaction's own, and
    cycles of writes."""
    index = Index(history)
    return [*_send_skips(index), *(cycle.anomaly() for cycle in find_cycles(index) if cycle.is_allowed)]


# --- checks of values and offsets -------------------------------------------------------------------------------------


def _duplicates(index: Index) -> Iterator[Anomaly]:
    for key, key_index in index.keys.items():
        for number, value in _values(key_index, key_index.more_offsets).items():
            offsets = sorted(key_index.more_offsets[number])
            yield Anomaly("duplicate", f"{value} is in {key} at offsets {offsets}", (value,))


def _inconsistent_offsets(index: Index) -> Iterator[Anomaly]:
    for key, key_index in index.keys.items():
        values = _values(key_index, {number: None for numbers in key_index.conflicts.values() for number in numbers})
        for offset in sorted(key_index.conflicts):
            there = sorted(values[number] for number in key_index.conflicts[offset])
            yield Anomaly("inconsistent-offsets", f"{key} at {offset} has {there}", tuple(there))


def _values(key_index: KeyIndex, wanted: Collection[int]) -> dict[int, Value]:
    """Return the values of these numbers."""
    return {number: value for value, number in key_index.numbers.items() if number in wanted} if wanted else {}


def _aborted_reads(index: Index) -> Iterator[Anomaly]:
    for key, key_index, value, number in index.values():
        flags = key_index.flags[number]
        if not flags & VISIBLE:
            continue
        if flags & WRITE_FAILED:
            yield Anomaly("G1a", f"{value} of a failed write was read from {key}", (value,))
        elif flags & ABORTED_LATER:
            yield Anomaly("phantom-commit", f"{value} was acknowledged as aborted, and was read from {key}", (value,))


def _garbage_reads(index: Index) -> Iterator[Anomaly]:
    """A value that was sent to another partition is one, too."""
    for key, key_index, value, number in index.values():
        if key_index.flags[number] & VISIBLE and key_index.writers[number] < 0:
            at = ", ".join(map(str, key_index.all_offsets(number)))
            yield Anomaly("garbage-read", f"{value} was read from {key} at {at}, and nobody sent it there", (value,))


def _lost_and_unseen(index: Index) -> Iterator[Anomaly]:
    for key, key_index, value, number in index.values():
        if key_index.flags[number] & (WRITE_OK | VISIBLE) != WRITE_OK:
            continue
        offset = key_index.offsets[number]
        if 0 <= offset < key_index.read_up_to:
            detail = f"{value}, acknowledged at {key} {offset}, was never read, later ones were"
            yield Anomaly("lost-write", detail, (value,))
        elif index.history.is_read_to_the_end:
            yield Anomaly("unseen", f"{value}, acknowledged in {key}, was not seen at the end", (value,))


# --- checks of operations ---------------------------------------------------------------------------------------------


class _IntermediateReads:
    """Readers of a partition that saw a part of a transaction in it and passed the rest.

    Most readers have seen every committed record between their first and their last one: they can only have passed
    values of which it is open whether they are committed.
    """

    def __init__(self, index: Index) -> None:
        self._keys = index.keys
        self._suspects: dict[int, dict[tuple[Key, int], None]] = defaultdict(dict)
        self._seen: dict[tuple[Key, int], array[int]] = {}
        for key, key_index in index.keys.items():
            self._look_for_gaps(key, key_index)

    def _look_for_gaps(self, key: Key, key_index: KeyIndex) -> None:
        offset_of = key_index.offsets.__getitem__
        undecided = _in_transactions(key_index, IN_TRANSACTION | WRITE_OK | VISIBLE)
        written: list[int] | None = None
        for process, view in key_index.views.items():
            if not view:
                continue
            seen, candidates = view, undecided
            if not _is_gapless(key_index, view):
                if written is None:
                    written = _in_transactions(key_index, IN_TRANSACTION)
                seen, candidates = array("q", sorted(view)), written
            start = bisect_left(candidates, seen[0], key=offset_of)
            end = bisect_right(candidates, seen[-1], key=offset_of)
            for number in candidates[start:end]:
                if not _is_seen(seen, key_index, number):
                    self._suspects[key_index.writers[number]][key, process] = None
                    self._seen[key, process] = seen

    def check(self, op_id: int, op: Op) -> Iterator[Anomaly]:
        for key, process in self._suspects.get(op_id, ()):
            key_index, seen = self._keys[key], self._seen[key, process]
            numbers = {send.value: key_index.numbers[send.value] for send in op.sends if send.key == key}
            missing = [value for value, number in numbers.items() if not _is_seen(seen, key_index, number)]
            passed = [value for value in missing if seen[0] <= key_index.offsets[numbers[value]] <= seen[-1]]
            if passed and len(missing) < len(numbers):
                detail = f"process {process} saw a transaction in {key} without {passed}"
                yield Anomaly("G1b", detail, tuple(numbers))


def _in_transactions(key_index: KeyIndex, mask: int) -> list[int]:
    """Return the values with an offset and, of the flags in ``mask``, IN_TRANSACTION only, in the order of the log."""
    numbers = [
        number
        for number, (flags, offset) in enumerate(zip(key_index.flags, key_index.offsets, strict=True))
        if flags & mask == IN_TRANSACTION and offset >= 0
    ]
    return sorted(numbers, key=key_index.offsets.__getitem__)


def _is_gapless(key_index: KeyIndex, view: array[int]) -> bool:
    """Whether a reader got every committed record from its first one to its last one, in order."""
    start = bisect_left(key_index.committed_offsets, view[0])
    return key_index.committed_offsets[start : start + len(view)] == view


def _is_seen(seen: array[int], key_index: KeyIndex, number: int) -> bool:
    """Whether a reader got any offset of a value. ``seen`` is sorted."""
    for offset in key_index.all_offsets(number):
        position = bisect_left(seen, offset)
        if position < len(seen) and seen[position] == offset:
            return True
    return False


class _TornTransactions:
    def __init__(self, index: Index) -> None:
        self._index = index

    def check(self, _op_id: int, op: Op) -> Iterator[Anomaly]:
        if not op.transactional or not self._index.history.is_read_to_the_end:
            return
        sends = op.sends
        seen = [self._index.is_visible(send.key, send.value) for send in sends]
        if any(seen) and not all(seen):
            first = sends[seen.index(True)]
            missing = [f"{send.value} in {send.key}" for send, is_seen in zip(sends, seen, strict=True) if not is_seen]
            detail = f"{first.value} in {first.key} is committed, but not {', '.join(missing)}"
            yield Anomaly("torn-transaction", detail, tuple(send.value for send in sends))


def _precommitted_reads(_op_id: int, op: Op) -> Iterator[Anomaly]:
    if not op.transactional:
        return
    sent: dict[tuple[Key, Value], None] = {}
    for action in op.actions:
        if isinstance(action, Send):
            sent[action.key, action.value] = None
            continue
        for _, value in action.records if sent else ():
            if (action.key, value) in sent:
                detail = f"a transaction read its own {value} from {action.key}"
                yield Anomaly("precommitted-read", detail, (value,))


class _PollOrder:
    """``_positions``: what each process has read last, by key."""

    def __init__(self, index: Index) -> None:
        self._keys = index.keys
        self._positions: dict[int, dict[Key, int]] = defaultdict(dict)

    def check(self, op_id: int, op: Op) -> Iterator[Anomaly]:
        if op.starts_anew or op.subscribed:
            self._positions[op.process] = {}
        before = self._positions[op.process]
        inside: dict[Key, int] = {}
        for poll in op.polls:
            key, key_index = poll.key, self._keys[poll.key]
            for offset, value in poll.records:
                last, prefix = (None, "") if op.rebalanced else (inside.get(key), "int-")
                if last is None:
                    last, prefix = before.get(key), ""
                inside[key] = offset
                if last is None or offset == last + 1:
                    continue
                where = f"process {op.process} read {value} at {key} {offset} after {last}"
                if offset <= last:
                    yield Anomaly(f"{prefix}nonmonotonic-poll", where, (value,), (op_id,))
                elif key_index.is_skipped(last, offset):
                    yield Anomaly(f"{prefix}poll-skip", where, (value,), (op_id,))
        before.update(inside)


class _SendOrder:
    """``_positions``: what each process has sent last, by key."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._positions: dict[int, dict[Key, int]] = defaultdict(dict)

    def check(self, _op_id: int, op: Op) -> Iterator[Anomaly]:
        if op.outcome is OpOutcome.FAIL:
            return
        before = self._positions[op.process]
        inside: dict[Key, int] = {}
        for send in op.sends:
            offset = self._index.offset_of(send.key, send.value)
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


def _send_skips(index: Index) -> Iterator[Anomaly]:
    for op in index.history.ops:
        last_offsets: dict[Key, int] = {}
        for send in op.sends:
            offset = index.offset_of(send.key, send.value)
            if offset is None or op.outcome is OpOutcome.FAIL:
                continue
            last = last_offsets.get(send.key)
            if last is not None and index.keys[send.key].is_skipped(last, offset):
                yield Anomaly(
                    "int-send-skip", f"others wrote to {send.key} between {last} and {offset} of one transaction"
                )
            last_offsets[send.key] = offset
