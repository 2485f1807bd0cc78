from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from einmal.ingest.postgresql.lsn import Lsn
from einmal.ingest.postgresql.position import StreamPosition
from einmal.ingest.postgresql.slot_checks import ServerState, SlotState, check_slot
from einmal.ingest.source import SourceRefused

SLOT = SlotState(plugin="pgoutput", database="shop", confirmed_lsn=Lsn(50), wal_status="reserved")
STATE = ServerState(database="shop", timeline=2, insert_lsn=Lsn(100), flushed_lsn=Lsn(90), slot=SLOT)
AT = StreamPosition(Lsn(50), 2)


@pytest.mark.parametrize("lsn", [50, 51, 100])
def test_a_slot_at_or_behind_the_position_is_accepted(lsn: int) -> None:
    check_slot("s", STATE, StreamPosition(Lsn(lsn), 2))


@pytest.mark.parametrize("slot", [None, SLOT])
def test_without_a_position_a_slot_may_be_missing_or_anywhere(slot: SlotState | None) -> None:
    check_slot("s", replace(STATE, slot=slot), None)


@pytest.mark.parametrize(
    ("state", "slot", "text"),
    [
        ({}, {"confirmed_lsn": Lsn(51)}, "ahead of the recorded position 0/32: changes between them are lost"),
        ({}, {"wal_status": "lost"}, "the server has removed log"),
        ({}, {"plugin": "wal2json"}, "output plugin 'wal2json'"),
        ({}, {"database": "other"}, "belongs to database 'other'"),
        ({"timeline": 3}, {}, "timeline 3"),
        ({"insert_lsn": Lsn(49)}, {}, "ends at 0/31, before the recorded position 0/32"),
        ({"slot": None}, {}, "does not exist any more"),
        ({"slot": None, "timeline": 3}, {}, "and has no replication slot 's'"),
    ],
)
def test_a_slot_that_lacks_changes_is_refused(state: dict[str, Any], slot: dict[str, Any], text: str) -> None:
    with pytest.raises(SourceRefused, match=text) as caught:
        check_slot("s", replace(replace(STATE, slot=replace(SLOT, **slot)), **state), AT)
    assert caught.value.hint
