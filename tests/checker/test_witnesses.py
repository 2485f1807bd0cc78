"""Claims about the operations that show an anomaly."""

from __future__ import annotations

from einmal.checker.history import Anomaly, History, Op, OpOutcome, Poll, Send
from einmal.checker.log import find_anomalies
from einmal.checker.witnesses import Witnesses
from einmal.types import TopicPartition

KEY = TopicPartition("t", 0)


def write(process: int, value: str, offset: int | None, outcome: OpOutcome = OpOutcome.OK) -> Op:
    return Op(
        process=process,
        actions=(Send(KEY, value, offset), Send(KEY, f"{value}+", None if offset is None else offset + 1)),
        outcome=outcome,
        transactional=True,
        ended=0.5,
    )


def read(process: int, *records: tuple[int, str]) -> Op:
    return Op(process=process, actions=(Poll(KEY, records),), outcome=OpOutcome.OK, began=1.0, ended=1.0)


def test_an_aborted_read_is_shown_by_its_writer_and_its_first_reader_only() -> None:
    history = History(
        (
            write(1, "a", 0),
            write(1, "b", None, OpOutcome.FAIL),
            read(2, (0, "a"), (1, "a+")),
            read(2, (3, "b")),
            read(3, (0, "a"), (1, "a+"), (3, "b")),
        )
    )
    anomaly = next(each for each in find_anomalies(history) if each.kind == "G1a")
    witnesses = Witnesses(history, [anomaly])
    assert witnesses.of(anomaly) == [1, 3]
    assert [witnesses.text(op_id, anomaly) for op_id in witnesses.of(anomaly)] == [
        "0.000 to 0.500 s, process 1, transaction, aborted: send 'b' to t-0",
        "1.000 s, process 2, reader: read 'b' from t-0 at offset 3",
    ]


def test_a_transfer_is_found_by_the_first_word_of_its_values() -> None:
    history = History((write(1, "order-1 7 -5", 0), read(2, (0, "order-1 7 -5")), read(2, (9, "order-10 7 -5"))))
    anomaly = Anomaly("duplicate", "order-1 is there twice", ("order-1",))
    assert Witnesses(history, [anomaly]).of(anomaly) == [0, 1]
