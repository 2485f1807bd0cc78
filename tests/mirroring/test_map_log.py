from __future__ import annotations

import pytest

from einmal.client.cores.fetched import RawBatch, whole_batches
from einmal.mirror_protocol.effects import GroupPosition, MapChange, MapKey, SavedMap
from einmal.mirror_protocol.offset_map import OffsetRun
from einmal.mirroring.map_log import MapReader, UnreadableMap, encode
from einmal.types import TopicPartition
from einmal.wire.control_batch import encode_marker
from einmal.wire.record_batch import NewRecord, encode_batch

PLACE = TopicPartition("__einmal_offset_maps", 0)
KEY = MapKey(TopicPartition("orders", 3), "source", "target")


def batch(records: list[NewRecord], producer_id: int = 1, *, transactional: bool = True) -> RawBatch:
    data = encode_batch(
        records, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=transactional
    )
    (found,) = whole_batches(PLACE, memoryview(data))
    return found


def marker(producer_id: int = 1, *, committed: bool = True) -> RawBatch:
    data = encode_marker(producer_id, 0, committed=committed, coordinator_epoch=0, timestamp=0)
    (found,) = whole_batches(PLACE, memoryview(data))
    return found


def change(*added: tuple[int, int, int], dropped: tuple[OffsetRun, ...] = (), **groups: int) -> list[NewRecord]:
    runs = tuple(OffsetRun(*run) for run in added)
    positions = {group: GroupPosition(offset, 100 + offset) for group, offset in groups.items()}
    return list(encode("A->B", {KEY: MapChange(runs, dropped, positions)}, 0))


def maps(*batches: RawBatch) -> dict[MapKey, SavedMap]:
    reader = MapReader("A->B")
    for each in batches:
        reader.take(each)
    return reader.maps()


def test_committed_changes_are_read_in_order() -> None:
    first = change((0, 100, 5), (7, 105, 1), g=3, h=1)
    second = change((7, 105, 2), dropped=(OffsetRun(0, 100, 5), OffsetRun(7, 105, 1)), g=6)
    assert maps(batch(first), marker(), batch(second), marker()) == {
        KEY: SavedMap((OffsetRun(7, 105, 2),), {"g": GroupPosition(6, 106), "h": GroupPosition(1, 101)})
    }


def test_changes_of_aborted_and_open_transactions_do_not_count() -> None:
    aborted = (batch(change((0, 100, 5))), marker(committed=False))
    assert maps(*aborted, batch(change((0, 200, 5)))) == {}


def test_transactions_of_other_mirrors_may_be_open() -> None:
    other = batch(list(encode("C->B", {KEY: MapChange((OffsetRun(0, 1, 1),))}, 0)), producer_id=2)
    assert set(maps(other, batch(change((0, 100, 5))), marker())) == {KEY}


@pytest.mark.parametrize("key", [None, b"\xff", b"{}", b"[1]"])
def test_records_that_no_mirror_has_written_are_ignored(key: bytes | None) -> None:
    assert maps(batch([NewRecord(key, b"x", 0)]), marker(), batch(change((0, 100, 5)), transactional=False)) == {}


def test_a_record_of_a_later_version_is_refused_with_its_key() -> None:
    (record,) = change((0, 100, 5))
    later = record._replace(value=b'{"version":2,"value":[1,2]}')
    with pytest.raises(UnreadableMap, match="orders.*format 2, this version reads 1"):
        maps(batch([later]), marker())
