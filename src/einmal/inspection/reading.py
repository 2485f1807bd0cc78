"""Questions to a cluster, with their failures as values: an answer, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from einmal.client.aio.consuming.offsets import EARLIEST, LATEST
from einmal.client.errors import KafkaError, NoBrokerReachable
from einmal.client.records import OffsetRange
from einmal.inspection.content import RangeContent, count
from einmal.inspection.model import NOT_REPORTED, ProducerView, TransactionView
from einmal.types import ErrorCode, IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from einmal.client.blocking.admin import AdminCalls
    from einmal.client.blocking.raw import RangeReader
    from einmal.client.cores.metadata_cache import TopicMetadata
    from einmal.client.descriptions import ProducerDescription, TransactionDescription, TransactionListing

COUNTED_OFFSETS_MAX: Final = 100_000
"""How many offsets of a partition are read to count what they have."""


AFTER_THE_END: Final = "records were lost there, or the topic was deleted and created again"
"""Why a position is after the end of its partition."""


def reason(error: KafkaError) -> str:
    """Why a field is None. Raises NoBrokerReachable: then nothing is known at all."""
    if isinstance(error, NoBrokerReachable):
        raise error
    return NOT_REPORTED if error.code is ErrorCode.unsupported_version else f"{error.name}: {error.meaning}"


def topics_each(
    admin: AdminCalls, topics: Iterable[str] | None
) -> tuple[dict[str, TopicMetadata], dict[str, KafkaError]]:
    """These topics, by default all, and the errors of those that cannot be described. Raises KafkaError where that is
    all of them."""
    if topics is None:
        return admin.describe_topics(), {}
    described: dict[str, TopicMetadata] = {}
    errors: dict[str, KafkaError] = {}
    for name in dict.fromkeys(topics):
        try:
            described |= admin.describe_topics([name])
        except NoBrokerReachable:
            raise
        except KafkaError as error:
            errors[name] = error
    if errors and not described:
        raise next(iter(errors.values()))
    return described, errors


class Bounds(NamedTuple):
    """Log start, last stable offset and high watermark of a partition."""

    start: int
    stable: int
    high: int


def bounds_of(
    admin: AdminCalls, partitions: Iterable[TopicPartition]
) -> tuple[dict[TopicPartition, Bounds], dict[TopicPartition, str]]:
    """The bounds of each partition, or why they are not known. The high watermark is read last: it is never before
    the last stable offset."""
    asked = list(partitions)
    offsets: dict[TopicPartition, list[int]] = {partition: [] for partition in asked}
    unknown: dict[TopicPartition, str] = {}
    for timestamp, isolation in (
        (EARLIEST, IsolationLevel.READ_UNCOMMITTED),
        (LATEST, IsolationLevel.READ_COMMITTED),
        (LATEST, IsolationLevel.READ_UNCOMMITTED),
    ):
        wanted = {partition: timestamp for partition in asked if partition not in unknown}
        for partition, answer in admin.list_offsets_each(wanted, isolation=isolation).items():
            if isinstance(answer, KafkaError):
                unknown[partition] = reason(answer)
            else:
                offsets[partition].append(answer.offset)
    return {partition: Bounds(*offsets[partition]) for partition in asked if partition not in unknown}, unknown


def partition_of(name: str) -> TopicPartition:
    """The partition that the views name so."""
    topic, _, index = name.rpartition("-")
    return TopicPartition(topic, int(index))


def log_ends_of(
    admin: AdminCalls, partitions: Iterable[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, str]]:
    """The end of each leader's log, or why it is not known. Ask after ``bounds_of``: it is never before the high
    watermark then."""
    asked = list(partitions)
    try:
        answers = admin.log_end_offsets_each(asked)
    except KafkaError as error:
        return {}, dict.fromkeys(asked, reason(error))
    ends = {partition: answer for partition, answer in answers.items() if isinstance(answer, int)}
    unknown = {partition: reason(answer) for partition, answer in answers.items() if isinstance(answer, KafkaError)}
    return ends, dict.fromkeys((partition for partition in asked if partition not in ends), NOT_REPORTED) | unknown


def content_of(
    reader: RangeReader, partition: TopicPartition, start: int, bounds: Bounds, most: int = COUNTED_OFFSETS_MAX
) -> RangeContent | None:
    """Content from ``start`` to the high watermark; None: more than ``most`` offsets. ``reader``: one that reads
    uncommitted records. Raises KafkaError."""
    start = max(start, bounds.start)
    if bounds.high - start > most:
        return None
    batches = reader.read({partition: OffsetRange(start, bounds.high)}, with_markers=True)
    return count(batches, start, bounds.stable)


def producers_of(
    admin: AdminCalls, partitions: Iterable[TopicPartition]
) -> tuple[dict[TopicPartition, tuple[ProducerView, ...]], dict[TopicPartition, str]]:
    """The producers in the state of each partition's leader, or why they are not known."""
    asked = list(partitions)
    described, errors = admin.describe_producers_each(asked)
    producers: dict[TopicPartition, list[ProducerView]] = {
        partition: [] for partition in asked if partition not in errors
    }
    for producer in described:
        producers[producer.topic_partition].append(_producer(producer))
    return {partition: tuple(some) for partition, some in producers.items()}, {
        partition: reason(error) for partition, error in errors.items()
    }


def _producer(described: ProducerDescription) -> ProducerView:
    start = described.current_transaction_start_offset
    return ProducerView(
        described.producer_id,
        described.producer_epoch,
        described.last_sequence,
        described.last_timestamp,
        described.coordinator_epoch,
        start if start >= 0 else None,
    )


def transaction_of(admin: AdminCalls, transactional_id: str, now: int) -> TransactionView:
    """Return what its coordinator knows of a transactional id. ``now`` in ms since 1970. Raises RequestRefused."""
    return _described(admin.describe_transactions([transactional_id])[transactional_id], now)


def transactions_of(admin: AdminCalls, listed: Iterable[TransactionListing], now: int) -> tuple[TransactionView, ...]:
    """Return what the coordinators know of these transactional ids; one that has expired meanwhile is left out."""
    transactions: list[TransactionView] = []
    for listing in listed:
        try:
            transactions.append(transaction_of(admin, listing.transactional_id, now))
        except KafkaError as error:
            if error.code is not ErrorCode.transactional_id_not_found:
                transactions.append(_undescribed(listing, reason(error)))
    return tuple(transactions)


_CLIENT: Final = {"client_id": NOT_REPORTED, "client_host": NOT_REPORTED}
"""No version of DescribeTransactions has them."""
_HIDDEN: Final = "it has none that may be described (DESCRIBE on their topics), or the markers of all are written"


def _described(description: TransactionDescription, now: int) -> TransactionView:
    start = description.start_time if description.is_open else None
    hidden = description.is_open and not description.partitions
    return TransactionView(
        description.transactional_id,
        description.state,
        description.coordinator_id,
        description.producer_id,
        description.producer_epoch,
        description.is_two_phase,
        None if description.is_two_phase else description.timeout_ms,
        start,
        None if start is None else max(0, now - start),
        None if hidden else tuple(map(str, description.partitions)),
        unknown=_CLIENT | ({"partitions": _HIDDEN} if hidden else {}),
    )


def _undescribed(listing: TransactionListing, why: str) -> TransactionView:
    fields = ("producer_epoch", "is_two_phase", "timeout_ms", "start_time", "age_ms", "partitions")
    unknown: Mapping[str, str] = dict.fromkeys(fields, why) | _CLIENT
    return TransactionView(
        listing.transactional_id,
        listing.state,
        listing.coordinator_id,
        listing.producer_id,
        *(None, None, None, None, None, None),
        unknown=unknown,
    )
