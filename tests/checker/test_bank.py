"""The bank's reader: guilty and innocent views."""

from __future__ import annotations

from einmal.checker.bank import BankReader, TransferEntry


def _reader() -> BankReader:
    return BankReader("reader", {1: 100, 2: 100, 3: 100})


def _transfer(name: str, amount: int = 5, partitions: tuple[int, int] = (0, 0)) -> tuple[TransferEntry, TransferEntry]:
    debit, credit = partitions
    return TransferEntry(name, 1, -amount, debit, credit), TransferEntry(name, 2, amount, credit, debit)


def _kinds(reader: BankReader, acknowledged: tuple[str, ...] = (), refused: tuple[str, ...] = ()) -> set[str]:
    return {anomaly.kind for anomaly in reader.finish(dict.fromkeys(acknowledged, "an order"), refused)}


def test_whole_transfers_keep_the_sum() -> None:
    reader = _reader()
    reader.read(0, _transfer("t1"))
    reader.read(0, [*_transfer("t2"), *_transfer("t3")])
    assert _kinds(reader, ("t1", "t2", "t3"), ("t4",)) == set()


def test_halves_of_two_partitions_meet() -> None:
    reader = _reader()
    debit, credit = _transfer("t1", partitions=(0, 1))
    reader.read(0, [debit])
    reader.read(1, [credit])
    assert _kinds(reader, ("t1",)) == set()


def test_half_a_transfer_inside_a_partition_is_seen_at_once() -> None:
    reader = _reader()
    debit, credit = _transfer("t1")
    reader.read(0, [debit])
    reader.read(0, [credit])
    assert _kinds(reader) == {"bank-sum"}


def test_half_a_transfer_over_partitions_is_torn_at_the_end() -> None:
    reader = _reader()
    reader.read(0, [_transfer("t1", partitions=(0, 1))[0]])
    assert _kinds(reader) == {"torn-transaction"}


def test_a_transfer_done_twice_is_a_duplicate() -> None:
    reader = _reader()
    reader.read(0, _transfer("t1"))
    reader.read(0, _transfer("t1"))
    assert "duplicate" in _kinds(reader)


def test_one_entry_twice_is_a_duplicate() -> None:
    reader = _reader()
    debit, credit = _transfer("t1")
    reader.read(0, [debit, debit, credit])
    assert "duplicate" in _kinds(reader)


def test_unequal_halves_change_the_sum() -> None:
    reader = _reader()
    reader.read(0, [TransferEntry("t1", 1, -5, 0, 0), TransferEntry("t1", 2, 6, 0, 0)])
    assert "bank-sum" in _kinds(reader)


def test_what_was_acknowledged_and_is_missing_is_lost() -> None:
    assert _kinds(_reader(), ("t1",)) == {"lost-write"}


def test_what_was_refused_and_is_there_is_an_aborted_read() -> None:
    reader = _reader()
    reader.read(0, _transfer("t1"))
    assert _kinds(reader, (), ("t1",)) == {"G1a"}


def test_a_transfer_that_is_there_twice_is_not_lost_too() -> None:
    reader = _reader()
    debit, credit = _transfer("t1", partitions=(0, 1))
    reader.read(0, [debit, debit])
    reader.read(1, [credit, credit])
    found = reader.finish({"t1": "an order"})
    assert {each.kind for each in found} <= {"duplicate", "bank-sum"}
    assert ("t1",) in [each.values for each in found if each.kind == "duplicate"]
