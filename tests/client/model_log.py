"""A tiny model of a partition leader: producer state as Kafka keeps it, and the values in the order of the log."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from einmal.types import SEQUENCE_MAX, ErrorCode
from einmal.wire.record_batch import decode_records, read_header


@dataclass
class _ProducerState:
    epoch: int
    last_sequence: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))
    """(first sequence, last sequence, base offset) of the last five batches."""


@dataclass
class ModelLog:
    values: list[bytes] = field(default_factory=list)
    states: dict[int, _ProducerState] = field(default_factory=dict)

    def append(self, data: bytes) -> tuple[ErrorCode, int]:
        """(error, base offset)."""
        header = read_header(data)
        assert header.record_count > 0
        if header.producer_id >= 0:
            refusal = self._admit(header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence)
            if refusal is not None:
                return refusal
            self.states[header.producer_id].batches.append(
                (header.base_sequence, header.last_sequence, len(self.values))
            )
        base_offset = len(self.values)
        self.values += [record.value or b"" for record in decode_records(data, 0, header)]
        return ErrorCode.none, base_offset

    def _admit(self, producer_id: int, epoch: int, first: int, last: int) -> tuple[ErrorCode, int] | None:
        """None: append it. Else what to answer without appending."""
        state = self.states.get(producer_id)
        if state is None:
            self.states[producer_id] = _ProducerState(epoch, last)
            return None
        if epoch < state.epoch:
            return ErrorCode.invalid_producer_epoch, -1
        if epoch > state.epoch:
            if first != 0:
                return ErrorCode.out_of_order_sequence_number, -1
            self.states[producer_id] = _ProducerState(epoch, last)
            return None
        for known_first, known_last, offset in state.batches:
            if (known_first, known_last) == (first, last):
                return ErrorCode.none, offset
        if first != (state.last_sequence + 1) & SEQUENCE_MAX:
            return ErrorCode.out_of_order_sequence_number, -1
        state.last_sequence = last
        return None
