"""Claims about the recorder of histories."""

from __future__ import annotations

import asyncio
import pickle

from einmal.checker.history import OpOutcome, Poll, Send
from einmal.client.records import ConsumerRecord
from einmal.types import TopicPartition
from einmal.workloads.recorder import Recorder

KEY = TopicPartition("t", 0)


def test_operations_that_write_are_counted_by_their_present_outcome() -> None:
    async def record() -> Recorder:
        recorder = Recorder()
        ongoing = recorder.begin(1, transactional=True)
        ongoing.sends(Send(KEY, "a"), Send(KEY, "b"))
        for outcome in OpOutcome:
            ended = recorder.begin(2)
            ended.sends(Send(KEY, outcome.name))
            ended.ended(outcome)
        reading = recorder.begin(3)
        reading.polled([])
        reading.ended(OpOutcome.OK)
        return recorder

    recorder = asyncio.run(record())
    counts = {outcome: recorder.count(outcome) for outcome in OpOutcome}
    assert recorder.sent == 2 + len(OpOutcome)
    assert counts == {OpOutcome.OK: 1, OpOutcome.FAIL: 1, OpOutcome.INFO: 2}
    ops = [op for op in recorder.history(is_read_to_the_end=False).ops if op.sends]
    assert counts == {outcome: sum(op.outcome is outcome for op in ops) for outcome in OpOutcome}


def test_operations_with_many_values_are_kept_small_and_come_back_whole() -> None:
    values = [f"transactional-1.17.3/{number}" for number in range(5_000)]

    async def record() -> Recorder:
        recorder = Recorder()
        ongoing = recorder.begin(1, transactional=True)
        ongoing.sends(*(Send(KEY, value) for value in values))
        ongoing.ended(OpOutcome.OK, range(len(values)))
        records = [
            ConsumerRecord(KEY.topic, KEY.partition, at, 0, None, value.encode(), ()) for at, value in enumerate(values)
        ]
        recorder.polled(2, records, read_committed=True)
        return recorder

    history = asyncio.run(record()).history(is_read_to_the_end=True)
    for _ in range(2):
        written, read = history.ops
        assert written.actions == tuple(Send(KEY, value, at) for at, value in enumerate(values))
        assert read.actions == (Poll(KEY, tuple(enumerate(values))),)
    assert len(pickle.dumps(history)) < 20 * len(values) * 2
