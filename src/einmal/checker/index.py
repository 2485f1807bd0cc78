"""A history by key, value and offset, for lookups of the checks.

The versions of a key are ordered by the offsets that readers, and senders of committed transactions, received. What is
known of values, versions and operations is in arrays of numbers, not in objects: histories have millions of them. The
history itself is not kept.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from math import inf
from typing import Final

from einmal.checker.history import History, Key, Op, OpOutcome, Poll, Send, Value

_NONE: Final = -1
_PAGE_BITS: Final = 8
_IN_PAGE: Final = (1 << _PAGE_BITS) - 1
_EMPTY_PAGE: Final = array("q", [_NONE]) * (1 << _PAGE_BITS)


VISIBLE: Final = 1
"""Flag of a value: a ``read_committed`` reader got it."""
WRITE_OK: Final = 2
WRITE_FAILED: Final = 4
ABORTED_LATER: Final = 8
IN_TRANSACTION: Final = 16
"""Its write is in a transaction that did not fail."""
_COMMITTED: Final = VISIBLE | WRITE_OK


class ValueSentTwice(ValueError):
    """Two sends of one value to one partition: a reader may have got either."""


class KeyIndex:
    """Values and versions of one key. Each value has a number, by which the arrays hold what is known of it."""

    __slots__ = (
        "_pages",
        "committed_offsets",
        "conflicts",
        "flags",
        "more_offsets",
        "numbers",
        "offsets",
        "read_up_to",
        "views",
        "writers",
    )

    def __init__(self) -> None:
        self.numbers: dict[Value, int] = {}
        self.offsets = array("q")
        """The lowest offset of a value; -1: none is known."""
        self.more_offsets: dict[int, dict[int, None]] = {}
        """All offsets of the values that have more than one."""
        self.writers = array("q")
        """The operation that sent a value, by its position in the history; -1: none."""
        self.flags = bytearray()
        self.conflicts: dict[int, dict[int, None]] = {}
        """Offsets with more than one value."""
        self.committed_offsets = array("q")
        self.read_up_to = _NONE
        self.views: dict[int, array[int]] = {}
        """The offsets that each reader got which never changed its position, by process."""
        self._pages: dict[int, array[int]] = {}
        """Values by offset, in pages, since offsets have gaps and may begin anywhere."""

    def number(self, value: Value) -> int:
        number = self.numbers.setdefault(value, len(self.flags))
        if number == len(self.flags):
            self.flags.append(0)
            self.offsets.append(_NONE)
            self.writers.append(_NONE)
        return number

    def sent(self, op_id: int, op: Op, send: Send) -> None:
        """Raises ValueSentTwice."""
        number = self.number(send.value)
        if self.writers[number] != _NONE:
            raise ValueSentTwice(
                f"operations {self.writers[number]} and {op_id}, counted from 0, send {send.value!r} to {send.key}; "
                "each value is sent once to a partition, because a reader may have got either"
            )
        flags = self.flags[number] & VISIBLE
        if op.outcome is OpOutcome.OK:
            flags |= WRITE_OK
        elif op.outcome is OpOutcome.FAIL:
            flags |= WRITE_FAILED
        if op.aborted_later:
            flags |= ABORTED_LATER
        if op.transactional and op.outcome is not OpOutcome.FAIL:
            flags |= IN_TRANSACTION
        self.flags[number] = flags
        self.writers[number] = op_id
        if send.offset is not None:
            self._learn(number, send.offset)
            if op.outcome is OpOutcome.OK:
                self.add_version(number, send.offset)

    def polled(self, poll: Poll, *, read_committed: bool) -> None:
        numbers, offsets, flags, pages = self.numbers, self.offsets, self.flags, self._pages
        for offset, value in poll.records:
            number = numbers.get(value, _NONE)
            if number == _NONE:
                number = self.number(value)
            page = pages.get(offset >> _PAGE_BITS)
            if page is None or page[offset & _IN_PAGE] != number or offsets[number] != offset:
                self._learn(number, offset)
                self.add_version(number, offset)
            if read_committed:
                flags[number] |= VISIBLE
                if offset > self.read_up_to:
                    self.read_up_to = offset

    def _learn(self, number: int, offset: int) -> None:
        known = self.offsets[number]
        if known == _NONE:
            self.offsets[number] = offset
        elif known != offset:
            self.more_offsets.setdefault(number, {known: None})[offset] = None
            self.offsets[number] = min(known, offset)

    def add_version(self, number: int, offset: int) -> None:
        """A value is, or was, at this offset for readers."""
        page = self._pages.get(offset >> _PAGE_BITS)
        if page is None:
            page = self._pages[offset >> _PAGE_BITS] = _EMPTY_PAGE[:]
        known = page[offset & _IN_PAGE]
        if known == _NONE:
            page[offset & _IN_PAGE] = number
        elif known != number:
            self.conflicts.setdefault(offset, {known: None})[number] = None

    def finish(self) -> None:
        """Everything is known: order what is committed."""
        for page_number in sorted(self._pages):
            for position, number in enumerate(self._pages[page_number]):
                if number != _NONE:
                    offset = page_number << _PAGE_BITS | position
                    is_committed = self.flags[number] & _COMMITTED
                    if is_committed or any(
                        self.flags[conflicting] & _COMMITTED for conflicting in self.conflicts.get(offset, ())
                    ):
                        self.committed_offsets.append(offset)

    def all_offsets(self, number: int) -> tuple[int, ...]:
        """Return every known offset of a value."""
        known = self.offsets[number]
        return tuple(self.more_offsets.get(number, () if known == _NONE else (known,)))

    def is_skipped(self, last: int, following: int) -> bool:
        """Whether committed records are known to lie between two offsets."""
        offsets = self.committed_offsets
        return following > last + 1 and bisect_right(offsets, last) < bisect_left(offsets, following)


class Index:
    """``began``, ``ended`` (never: infinite): of each operation, by its position in the history.

    ``has_polls``: 1 if it read anything.
    """

    def __init__(self, history: History) -> None:
        """Raises ValueSentTwice."""
        self.history = history
        self.keys: dict[Key, KeyIndex] = {}
        self.began = array("d")
        self.ended = array("d")
        self.has_polls = bytearray()
        self._moved: dict[int, None] = {}
        with_open_offsets = [op for op_id, op in enumerate(history.ops) if self._add(op_id, op)]
        for op in with_open_offsets:
            for send in op.sends:
                if send.offset is not None and self.is_committed(op, send):
                    key_index = self.keys[send.key]
                    key_index.add_version(key_index.numbers[send.value], send.offset)
        for key in self.keys.values():
            key.finish()
            for process in self._moved:
                key.views.pop(process, None)

    def _add(self, op_id: int, op: Op) -> bool:
        """Return whether the outcome is unknown, and offsets are known."""
        has_polls = has_offsets = False
        if op.starts_anew or op.subscribed or op.rebalanced or not op.read_committed:
            # Members of a group pass on what others read.
            self._moved[op.process] = None
        for action in op.actions:
            key = self.keys.get(action.key)
            if key is None:
                key = self.keys[action.key] = KeyIndex()
            if isinstance(action, Send):
                key.sent(op_id, op, action)
                has_offsets = has_offsets or action.offset is not None
            else:
                has_polls = True
                key.polled(action, read_committed=op.read_committed)
                if op.process not in self._moved:
                    view = key.views.setdefault(op.process, array("q"))
                    view.extend([offset for offset, _ in action.records])
        self.began.append(op.began)
        self.ended.append(inf if op.ended is None else op.ended)
        self.has_polls.append(has_polls)
        return has_offsets and op.outcome is OpOutcome.INFO

    def values(self) -> Iterator[tuple[Key, KeyIndex, Value, int]]:
        """Every value that was sent or read, with its number."""
        for key, key_index in self.keys.items():
            for value, number in key_index.numbers.items():
                yield key, key_index, value, number

    def is_visible(self, key: Key, value: Value) -> bool:
        """A ``read_committed`` reader got it."""
        key_index = self.keys[key]
        return bool(key_index.flags[key_index.numbers[value]] & VISIBLE)

    def is_committed(self, op: Op, send: Send) -> bool:
        """Acknowledged, or of unknown outcome but seen (in a transaction: any of it)."""
        if op.outcome is not OpOutcome.INFO:
            return op.outcome is OpOutcome.OK
        mates = op.sends if op.transactional else [send]
        return any(self.is_visible(mate.key, mate.value) for mate in mates)

    def offset_of(self, key: Key, value: Value) -> int | None:
        """Return the lowest known offset of a value of the history."""
        key_index = self.keys[key]
        offset = key_index.offsets[key_index.numbers[value]]
        return None if offset == _NONE else offset
