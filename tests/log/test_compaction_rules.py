"""Whatever is written, cleaned and interrupted, in any order: a reader sees what Kafka's rules allow, and nothing else.

- What is seen was committed, and stands at its offset.
- What was committed and is not seen has a later committed record of its key, or is a tombstone whose horizon is over.
- Below the cleaned offset no key is seen twice.
- What producers may write next, and which transactions are undecided, does not depend on cleaning or restarts.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any, Final, NamedTuple

import pytest

from einmal.log.config import LogConfig
from einmal.log.partition_log import PartitionLog
from einmal.types import ErrorCode, Offset
from einmal.wire.compression import Compression
from tests.log.cleaning import clean, keyed, pairs
from tests.log.making import FOLDER, DyingDisk, Machine, append, at, done, end_transaction, open_log, producer

RETENTION_MS: Final = 3_600_000
CONFIG: Final = LogConfig(
    segment_bytes=400,
    index_interval_bytes=100,
    cleanup_policy="compact",
    delete_retention_ms=RETENTION_MS,
    producer_id_expiration_ms=1 << 50,
)
DERIVED: Final = (".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint", "recovery-checkpoint")
FOR_EVER: Final = 1 << 40

STEPS: Final = (
    ["plain", "transactional"] * 4
    + ["tombstone", "commit", "clean", "die_cleaning"] * 2
    + ["abort", "clean_a_little", "wait", "checkpoint", "lose_power_cleaning", "truncate"]
    + ["restart", "lose_everything_derived", "lose_newest_snapshots"]
)


class Written(NamedTuple):
    """A record that was written, or (key None) a marker."""

    offset: Offset
    key: bytes | None
    value: bytes | None
    producer_id: int
    is_transactional: bool
    commits: bool = False


class Rules:
    def __init__(self, seed: int) -> None:
        self.machine = Machine(seed)
        disk = self.machine.process()
        disk.make_directory(FOLDER.parent)
        disk.sync_directory(FOLDER.parent.parent)
        self.written: list[Written] = []
        self.now = 0
        self.met: dict[Offset, int] = {}
        """When a round first went over an offset."""
        self.last_round = -1
        self.reach = Offset(0)
        """How far rounds have gone, whole or not."""
        self.high_watermark = Offset(0)
        """At the last round."""
        self.disk = DyingDisk(disk, FOR_EVER)
        self.log = self._open()

    def _open(self) -> PartitionLog:
        return open_log(self.disk, config=CONFIG, now=at(self.now))

    # --- steps -----------------------------------------------------------------------------------------------------

    def step(self, what: str, number: int) -> None:
        getattr(self, what)(number)
        self.check()

    def plain(self, number: int, value: bytes | None = b"", producer_id: int = -1, transactional: bool = False) -> None:
        count = 1 + number % 3
        records = [
            (b"key %d" % ((number + each) % 5), None if value is None else b"%d" % (number * 10 + each))
            for each in range(count)
        ]
        if number % 7 == 0:
            records[0] = (records[0][0], b"x" * 60)
        of, sequence = None, -1
        if producer_id >= 0:
            entry = self.log.producers.entry(producer(producer_id).producer_id)
            of = producer(producer_id)
            sequence = entry.last_sequence + 1 if entry else 0
        codec = Compression.ZSTD if number % 4 == 0 else Compression.NONE
        data = keyed(*records, of=of, sequence=sequence, transactional=transactional, compression=codec)
        result = append(self.log, data, now=at(self.now))
        assert result.error is ErrorCode.none
        self.written += [
            Written(Offset(result.base_offset + each), key, content, producer_id, transactional)
            for each, (key, content) in enumerate(records)
        ]

    def tombstone(self, number: int) -> None:
        self.plain(number, None)

    def transactional(self, number: int) -> None:
        # Some are idempotent only.
        self.plain(number, None if number % 5 == 0 else b"", number % 4, transactional=number % 4 != 0)

    def commit(self, number: int, committed: bool = True) -> None:
        of = 1 + number % 3
        result = end_transaction(self.log, producer(of), committed=committed, now=at(self.now))
        self.written.append(Written(result.base_offset, None, None, of, True, committed))

    def abort(self, number: int) -> None:
        self.commit(number, committed=False)

    def wait(self, number: int) -> None:
        self.now += number * 5_000

    def checkpoint(self, number: int) -> None:
        self.log.durability.checkpoint_now()

    def clean(self, number: int, map_bytes: int = 1 << 20) -> None:
        self._round_begins()
        stable, known = self.log.last_stable_offset, self.known()
        clean(self.log, at(self.now), map_bytes)
        assert (self.log.last_stable_offset, self.known()) == (stable, known)

    def clean_a_little(self, number: int) -> None:
        self.clean(number, map_bytes=1 + number)

    def _round_begins(self) -> None:
        end = self.log.cleanable(at(self.now)).end
        self.reach = max(self.reach, end)
        self.high_watermark = self.log.high_watermark
        self.last_round = max(self.last_round, self.now)
        for each in self.written:
            if each.offset < end:
                self.met.setdefault(each.offset, self.now)

    def die_cleaning(self, number: int, *, power: bool = False) -> None:
        known = self.known()
        done(self.log.durability.flush())
        self._round_begins()
        self.disk.left = number % 60
        with contextlib.suppress(OSError):
            clean(self.log, at(self.now), 1 + number * 3)
        if power:
            self.machine.cut_power()
        self.disk = DyingDisk(self.machine.process(), FOR_EVER)
        self.log = self._open()
        assert self.known() == known

    def lose_power_cleaning(self, number: int) -> None:
        self.die_cleaning(number, power=True)

    def restart(self, number: int, lost: tuple[str, ...] = ()) -> None:
        known = self.known()
        self.log.close(clean=number % 2 == 0)
        self.disk = DyingDisk(self.machine.process(), FOR_EVER)
        for name in self.disk.list_directory(FOLDER):
            if lost and name.endswith(lost):
                self.disk.remove(FOLDER / name)
        self.log = self._open()
        assert self.known() == known

    def lose_everything_derived(self, number: int) -> None:
        self.restart(number, DERIVED)

    def lose_newest_snapshots(self, number: int) -> None:
        snapshots = [name for name in self.disk.list_directory(FOLDER) if name.endswith(".snapshot")]
        self.restart(1, tuple(snapshots[-1 - number % 2 :]))

    def truncate(self, number: int) -> None:
        target = Offset(self.log.log_end_offset - number % 10)
        if target < self.high_watermark:
            # What rounds have seen as decided never goes, unless a leader is elected uncleanly.
            return
        self.log.truncate_to(target)
        self.written = [each for each in self.written if each.offset < self.log.log_end_offset]

    # --- what must hold --------------------------------------------------------------------------------------------

    def known(self) -> dict[int, Any]:
        """What decides about a producer's next batch. A closed transaction's coordinator epoch may be forgotten."""
        return {
            each.producer_id: (each.producer_epoch, each.last_sequence, each.current_txn_start_offset)
            for each in self.log.producers.describe()
        }

    def committed(self) -> list[Written]:
        """Records below the first undecided transaction, but for the aborted ones."""
        open_records: dict[int, list[Written]] = {}
        aborted: dict[Offset, None] = {}
        for each in self.written:
            if each.key is None:
                ended = open_records.pop(each.producer_id, [])
                aborted |= {} if each.commits else dict.fromkeys(record.offset for record in ended)
            elif each.is_transactional:
                open_records.setdefault(each.producer_id, []).append(each)
        undecided = min((records[0].offset for records in open_records.values()), default=self.log.log_end_offset)
        assert self.log.last_stable_offset == undecided
        return [
            each
            for each in self.written
            if each.key is not None and each.offset < undecided and each.offset not in aborted
        ]

    def check(self) -> None:
        committed = self.committed()
        seen = pairs(self.log)
        offsets = [offset for offset, _, _ in seen]
        assert offsets == sorted(set(offsets))
        assert set(seen) <= {(each.offset, each.key, each.value) for each in committed}
        for each in committed:
            if each.offset in offsets:
                continue
            later = [other for other in committed if other.key == each.key and each.offset < other.offset < self.reach]
            over = self.met.get(each.offset, FOR_EVER) + RETENTION_MS <= self.last_round
            assert later or (each.value is None and over), each
        below = [key for offset, key, _ in seen if offset < self.log.cleaned_offset]
        assert len(below) == len(set(below))


@pytest.mark.parametrize("seed", range(100))
def test_readers_see_what_the_rules_of_compaction_allow(seed: int) -> None:
    source = random.Random(seed)
    rules = Rules(seed)
    for _ in range(source.randrange(10, 90)):
        rules.step(source.choice(STEPS), source.randrange(1000))
