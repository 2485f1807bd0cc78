"""A broker's data directory with a file of every type, and what becomes of it when one of them is damaged."""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from einmal.broker.node import Node
from einmal.log.errors import LogCorruption
from einmal.types import (
    ErrorCode,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from einmal.wire.record_batch import decode_records, iter_headers
from tests.broker.nodes import Client, batch, new_node
from tests.suite.patience import patient

METADATA = "__cluster_metadata-0"
PARTITIONS = ("t-0", "t-1")
SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "metadata.log.max.record.bytes.between.snapshots": 600,
    "log.index.interval.bytes": 200,
}
SMALL_SEGMENTS: dict[str, Any] = {"internal_segment_bytes": "3000"}
RECORDS = 46
ENDINGS = ("clean", "killed")
START_SECONDS = 15
SECONDS_MAX = 30

FILES: dict[str, tuple[str, str]] = {
    "metadata log": (METADATA, "*.log"),
    "metadata snapshot": (METADATA, "*-*.checkpoint"),
    "quorum-state": (METADATA, "quorum-state"),
    "metadata: recovery-checkpoint": (METADATA, "recovery-checkpoint"),
    "metadata: leader-epoch-checkpoint": (METADATA, "leader-epoch-checkpoint"),
    "metadata: partition.metadata": (METADATA, "partition.metadata"),
    "meta.properties": ("", "meta.properties"),
    ".boot": ("", ".boot"),
    ".running": ("", ".running"),
    "high-watermarks": ("", "high-watermarks"),
    ".kafka_cleanshutdown": ("", ".kafka_cleanshutdown"),
    "log, first segment": ("t-0", "first .log"),
    "log, active segment": ("t-0", "last .log"),
    ".index": ("t-0", "first .index"),
    ".timeindex": ("t-0", "first .timeindex"),
    ".txnindex": ("t-0", "first .txnindex"),
    ".snapshot": ("t-0", "last .snapshot"),
    "leader-epoch-checkpoint": ("t-0", "leader-epoch-checkpoint"),
    "recovery-checkpoint": ("t-0", "recovery-checkpoint"),
    "partition.metadata": ("t-0", "partition.metadata"),
    "partition directory": ("", "t-0"),
    "`__cluster_metadata` directory": ("", METADATA),
    "`__consumer_offsets` log": ("__consumer_offsets-0", "last .log"),
    "`__transaction_state` log": ("__transaction_state-0", "last .log"),
    "`__transaction_state`: recovery-checkpoint": ("__transaction_state-0", "recovery-checkpoint"),
    ".swap of an unfinished cleaning": ("t-0", "00000000000000000000.log.swap"),
    ".deleted": ("t-0", "00000000000000000000.log.deleted"),
}
"""Directory, and which of its files: a pattern, or the first or the last of a kind."""

DIRECTORY_DAMAGES = ("removal", "swap")
DAMAGES = ("bit flip", "truncation", "removal", "swap", "zeroes")


# --- a data directory ------------------------------------------------------------------------------------------------


async def make(folder: Path) -> None:
    """``folder/killed`` as kill -9 leaves it in the same boot of the machine, ``folder/clean`` after a clean stop."""
    node = new_node(folder / "clean", SETTINGS)
    await node.start()
    async with Client.connect(node) as client:
        await client.create_topic("t", partitions=2, **SMALL_SEGMENTS)
        await client.create_topic("other", **SMALL_SEGMENTS)
        await _coordinate(client)
        for number in range(RECORDS):
            for partition in range(2):
                await _write(node, partition, number)
            if number == RECORDS - 4:
                for each in node.partitions._all():
                    each._log.durability.marks_moved()
                await node.partitions.checkpoint()
        await client.create_topic("late", **SMALL_SEGMENTS)
        # Two snapshots: the log does not begin at offset 0 any more.
        for _ in range(2_000):
            if node.quorum.partition.log_start_offset and not node.quorum._snapshot_writer.is_writing:
                break
            await asyncio.sleep(0.005)
        await node.partitions._store_marks()
        # In its first five seconds a partition has neither mark nor checkpoint.
        late = node.partitions.get(TopicPartition("late", 0))
        assert late is not None
        assert late.append(bytearray(batch(b"late")), node.clock.now()).error is ErrorCode.none
    shutil.copytree(folder / "clean", folder / "killed")
    await node.stop()
    for ending in ENDINGS:
        for name, suffix in itertools.product(PARTITIONS, ("swap", "deleted")):
            path = folder / ending / name / f"{0:020d}.log"
            path.with_name(f"{path.name}.{suffix}").write_bytes(path.read_bytes()[:500])


async def _coordinate(client: Client) -> None:
    for key_type in (0, 1):
        await client.call(10, 3, {"key": "g", "key_type": key_type})
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 5}]}]
    commit = {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": topics, "member_id": ""}
    new = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    for number in range(30):
        await _until(lambda: client.call(8, 8, commit), lambda answer: answer.topics[0].partitions[0].error_code)
        fields = {"transactional_id": f"id {number}", **new}
        await _until(partial(client.call, 22, 5, fields), lambda answer: answer.error_code)


async def _until(ask: Callable[[], Awaitable[Any]], error_of: Callable[[Any], ErrorCode]) -> Any:
    """Ask a coordinator until it is loaded."""
    for _ in range(2_000):
        answer = await ask()
        if error_of(answer) is ErrorCode.none:
            return answer
        await asyncio.sleep(0.005)
    raise AssertionError(answer)


async def _write(node: Node, partition_id: int, number: int) -> None:
    """A record; in t-0 every fourth is of a transaction that is aborted."""
    partition = node.partitions.get(TopicPartition("t", partition_id))
    assert partition is not None
    producer = ProducerIdAndEpoch(ProducerId(1000 + partition_id), ProducerEpoch(0))
    value = b"%d %d " % (partition_id, number) + bytes(150)
    is_aborted = number % 4 == 3
    data = batch(value, producer=producer, sequence=number, transactional=is_aborted)
    assert partition.append(bytearray(data), node.clock.now()).error is ErrorCode.none
    if is_aborted:
        result = partition.append_marker(
            producer,
            node.clock.now(),
            committed=False,
            coordinator_epoch=0,
            transaction_version=TransactionVersion.TV_0,
        )
        assert result.error is ErrorCode.none


# --- damage ----------------------------------------------------------------------------------------------------------


def find(folder: Path, file: str) -> Path | None:
    directory, pattern = FILES[file]
    which, _, suffix = pattern.rpartition(" ")
    found = sorted((folder / directory).glob(f"*{suffix}" if which else pattern))
    if which:
        found = [path for path in found if path.stat().st_size] if suffix != ".log" else found
    elif file == "metadata log":
        found = found[-1:]
    return None if not found else found[0 if which == "first" else -1]


def _other(folder: Path, path: Path) -> Path:
    """A file of another partition to exchange the contents with."""
    partners = {
        "t-0": "t-1",
        METADATA: "t-1",
        "meta.properties": f"{METADATA}/quorum-state",
        "quorum-state": "meta.properties",
        ".boot": ".running",
        "partition.metadata": "other-0/partition.metadata",
    }
    if path.parent == folder or path.name in partners:
        return folder / partners.get(path.name, ".boot")
    if path.name.endswith(".checkpoint"):
        return folder / "t-0" / "recovery-checkpoint"
    other = folder / ("t-1" if path.parent.name == "t-0" else "t-0")
    same = other / path.name
    if same.exists():
        return same
    alike = sorted(other.glob(f"*{path.suffix}")) or sorted(other.glob("*.log"))
    return alike[-1]


def damage(folder: Path, path: Path, how: str) -> None:
    if path.is_dir():
        _damage_directory(path, _other(folder, path), how)
        return
    data = path.read_bytes()
    match how:
        case "bit flip":
            place = len(data) // 2
            path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        case "truncation":
            path.write_bytes(data[: len(data) // 2])
        case "removal":
            path.unlink()
        case "swap":
            other = _other(folder, path)
            path.write_bytes(other.read_bytes())
            other.write_bytes(data)
        case "zeroes":
            half = len(data) // 2
            path.write_bytes(data[:half] + bytes(len(data) - half))


def _damage_directory(path: Path, other: Path, how: str) -> None:
    assert how in DIRECTORY_DAMAGES
    if how == "removal":
        shutil.rmtree(path)
        return
    between = path.with_name("between")
    path.rename(between)
    other.rename(path)
    between.rename(other)


# --- what becomes of it ----------------------------------------------------------------------------------------------


class Result:
    def __init__(self) -> None:
        self.error = ""
        """Why the start failed."""
        self.offline: dict[str, None] = {}
        self.unread: dict[str, None] = {}
        self.lost: dict[str, None] = {}
        self.is_coordinator_whole = True
        self.logged: list[str] = []

    def outcome(self, stray: bool) -> str:
        if self.error:
            return "stops"
        if stray:
            return "stray"
        if self.offline:
            return "offline"
        if self.unread:
            return "unread"
        if self.lost:
            return "cut"
        return "same" if not self.logged else "rebuilt"


async def examine(folder: Path) -> Result:
    """Start a broker on the directory and read everything. Nothing but LogCorruption may come out of it."""
    result = Result()
    node = new_node(folder, SETTINGS)
    with logged() as result.logged:
        async with asyncio.timeout(patient(SECONDS_MAX)):
            try:
                await asyncio.wait_for(node.start(), patient(START_SECONDS))
            except LogCorruption as error:
                result.error = str(error)
            else:
                async with Client.connect(node) as client:
                    for partition in range(2):
                        _search(node, partition)
                        await _read(client, partition, result)
                    result.is_coordinator_whole = await _is_coordinator_whole(client)
            await node.stop()
    return result


@contextmanager
def logged() -> Iterator[list[str]]:
    """What is logged as a warning or worse."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert not record.exc_info, record.getMessage()
            lines.append(record.getMessage())

    handler = Handler(logging.WARNING)
    logger = logging.getLogger("einmal")
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


def _search(node: Node, partition_id: int) -> None:
    """Use both indexes."""
    partition = node.partitions.get(TopicPartition("t", partition_id))
    if partition is not None:
        with suppress(LogCorruption):
            partition.search_by_time(1, Offset(2))
            partition.read(Offset(2), 1, below=partition.high_watermark)


async def _read(client: Client, partition: int, result: Result) -> None:
    name = f"t-{partition}"
    expected = [b"%d %d " % (partition, number) for number in range(RECORDS)]
    found, offset = [], 0
    while True:
        answer = await client.fetch("t", offset, partition=partition)
        if answer.error_code is ErrorCode.kafka_storage_error and not offset:
            result.offline[name] = None
            return
        if answer.error_code is not ErrorCode.none:
            result.unread[name] = None
            return
        records = bytes(answer.records or b"")
        if not records:
            break
        for position, header in iter_headers(records):
            if not header.is_control:
                found += [(record.value or b"")[:-150] for record in decode_records(records, position, header)]
            offset = header.next_offset
    assert found == expected[: len(found)], "records that nobody wrote, or a gap"
    if len(found) < len(expected):
        result.lost[name] = None


async def _is_coordinator_whole(client: Client) -> bool:
    fields = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]}
    answer = await _until(lambda: client.call(9, 5, fields), lambda answer: answer.error_code)
    return bool(answer.topics[0].partitions[0].committed_offset == 5)


async def outcome(base: Path, folder: Path, file: str, how: str, ending: str) -> str:
    """What becomes of a copy of ``base`` that is damaged; empty: it has no such file. Asserts what must always hold."""
    shutil.copytree(base / ending, folder)
    path = find(folder, file)
    if path is None:
        return ""
    damage(folder, path, how)
    before = _directories(folder)
    content = _contents(folder)
    result = await examine(folder)
    after = _directories(folder)
    strays = [name for name in after if name.endswith("-stray")]
    kept = {name.split(".")[0] for name in after}
    assert before <= kept, "a directory is gone"
    if result.error:
        _assert_untouched(content, folder)
        assert str(folder) in result.error
        assert "Restore" in result.error
    if result.offline or result.lost or result.unread or strays:
        assert any(name in line for line in result.logged for name in PARTITIONS), result.logged
    else:
        assert result.error or result.is_coordinator_whole
    return result.outcome(bool(strays))


def _directories(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_dir()}


def _contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*.log") if path.parent.name in PARTITIONS}


def _assert_untouched(content: dict[Path, bytes], folder: Path) -> None:
    """A start that stops has cut or removed no records."""
    for path, data in content.items():
        assert path.read_bytes()[: len(data)] == data, path
