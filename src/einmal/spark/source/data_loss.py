"""Messages that a source reports when its position does not fit its topics any more. Pure.

Lost records end a query under ``failOnDataLoss``, and are logged without it. A position that belongs elsewhere is
refused in either case.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from einmal.commit_protocol.source_offsets import Positions, SourcePosition
from einmal.types import Offset, TopicPartition

_NAMED_MAX: Final = 8
"""Partitions that one message names."""


class DataLoss(Exception):
    """Records that were to be read are gone. Raised under ``failOnDataLoss``."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f'{what}\nhint: .option("failOnDataLoss", "false") continues with the records that still exist, and logs '
            "what is lost"
        )


class PositionRefused(Exception):
    """The position is not one in what the source reads: other topics, or another cluster."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(f"{what}\nhint: {hint}")


# --- lost records ---------------------------------------------------------------------------------------------------


def deleted_topic(topic: str, reached: Positions) -> str:
    return f"topic {topic!r} was deleted; it was read up to {_named(reached)}, records after that are lost"


def recreated_topic(topic: str, before: str, now: str, reached: Positions) -> str:
    return (
        f"topic {topic!r} was deleted and created again (topic id {before}, now {now}); the old topic was read up to "
        f"{_named(reached)}, records after that are lost"
    )


def shorter_log(ends: Positions, reached: Positions, *, is_same_topic: bool) -> str:
    cause = (
        "the log was truncated (an unclean leader election, or a disk that was lost or restored)"
        if is_same_topic
        else "the topic was probably deleted and created again (its id is not known)"
    )
    parts = (
        f"{partition} ends at offset {ends[partition]}, before offset {reached[partition]}, up to which it was read"
        for partition in sorted(reached)
    )
    return f"{_listed(parts)}: {cause}"


def missing_partitions(reached: Positions) -> str:
    return f"partitions do not exist any more that were read up to {_named(reached)}: the topic was created again"


def expired_records(starts: Positions, earliest: Positions) -> str:
    """Offsets that were not read yet, and are before a log's first one."""
    count = sum(earliest[partition] - starts[partition] for partition in starts)
    parts = (f"{partition} offsets {starts[partition]} to {earliest[partition] - 1}" for partition in sorted(starts))
    return (
        f"{count} offset(s) were deleted before they were read: {_listed(parts)}; retention "
        "(retention.ms, retention.bytes) or DeleteRecords removed them"
    )


def unreadable(partition: TopicPartition, start: int, end: int, why: str) -> str:
    return f"{partition} offsets {start} to {end - 1} cannot be read: {why}"


# --- a position that belongs elsewhere ------------------------------------------------------------------------------


def not_selected(option: str, topics: Iterable[str], selected: Iterable[str]) -> PositionRefused:
    """The checkpoint has positions in topics that the source does not read."""
    names, others = sorted(set(topics)), sorted(set(selected))
    return PositionRefused(
        f'option "{option}" does not select {_quoted(names)}, in which this query has a position; it selects '
        f"{_quoted(others) or 'no topic'}: the option was changed, or the sources of the query changed their order",
        f'select {_quoted(names)} again; to read other topics begin with a new checkpoint, and with "startingOffsets"; '
        'where the sink has a "transactional.id": einmal pipeline reset',
    )


def no_such_topic(option: str, names: Iterable[str]) -> PositionRefused:
    """``names``: of topics, or of partitions."""
    return PositionRefused(
        f'option "{option}" selects {", ".join(sorted(names))}, which does not exist',
        f'create it, or correct "{option}"',
    )


def batch_of_another_source(end: Mapping[str, object]) -> PositionRefused:
    return PositionRefused(
        f"the checkpoint has a batch 0 that another source has planned, up to {json.dumps(end)[:200]}, and that is not "
        "finished: einmal's source would leave its records out",
        "start the query once more with its former source, until batch 0 is finished, and change the source then",
    )


def other_cluster(servers: str, position: SourcePosition, cluster_id: str) -> PositionRefused:
    topics = sorted({partition.topic for partition in position.offsets})
    return PositionRefused(
        f"kafka.bootstrap.servers={servers} leads to cluster {cluster_id}, but this query's position in "
        f"{_quoted(topics)} is one in cluster {position.cluster_id}: offsets of one cluster mean nothing in another",
        "correct kafka.bootstrap.servers; after a migration (MirrorMaker) begin with a new checkpoint, and with the "
        'translated offsets in "startingOffsets"; where the sink has a "transactional.id": einmal pipeline reset',
    )


# --- parts ----------------------------------------------------------------------------------------------------------


def of_topic(positions: Mapping[TopicPartition, Offset], topic: str) -> Positions:
    return {partition: offset for partition, offset in positions.items() if partition.topic == topic}


def _named(positions: Positions) -> str:
    return _listed(f"{partition}:{positions[partition]}" for partition in sorted(positions))


def _quoted(names: Iterable[str]) -> str:
    return _listed(map(repr, names))


def _listed(parts: Iterable[str]) -> str:
    texts = list(parts)
    more = len(texts) - _NAMED_MAX
    return ", ".join(texts[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
