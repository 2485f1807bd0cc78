"""Examination of partitions for ``einmal txn doctor``: asks twice, so that what ends meanwhile is no finding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from einmal.client.errors import KafkaError
from einmal.inspection.content import RangeContent
from einmal.inspection.diagnosis import (
    Cause,
    Diagnosis,
    HeldPartition,
    Holder,
    Open,
    WaitingGroup,
    cause_of,
    owner_of,
    verdict,
    way_out,
)
from einmal.inspection.model import NOT_REPORTED, ProducerView, TransactionView
from einmal.inspection.reading import (
    Bounds,
    bounds_of,
    content_of,
    producers_of,
    reason,
    topics_each,
    transactions_of,
)
from einmal.types import TopicPartition

if TYPE_CHECKING:
    from einmal.client.blocking.admin import AdminCalls
    from einmal.client.blocking.raw import RangeReader

_UNASKED_MAX: Final = 3
"""Groups whose coordinators do not answer, each in its own time, until no further one is asked."""


class _Positions(NamedTuple):
    """Offsets of groups; None where none could be asked. ``unknown``: why some are missing, empty if none is."""

    offsets: Mapping[str, Mapping[TopicPartition, int]] | None
    unknown: str = ""


class _Waiting(NamedTuple):
    """Records and readers behind a partition's last stable offset."""

    bounds: Bounds
    content: RangeContent | None
    groups: tuple[WaitingGroup, ...] | None
    unknown: Mapping[str, str]


def examine(admin: AdminCalls, reader: RangeReader, topics: Iterable[str] | None, now: int) -> Diagnosis:
    """Examine the partitions of these topics, or of all, internal ones too. ``now`` in ms since 1970; ``reader``: one
    that reads uncommitted records. Raises KafkaError where the cluster cannot be asked."""
    described, missing = topics_each(admin, topics)
    partitions = [TopicPartition(name, index) for name, topic in described.items() for index in topic.partitions]
    before, unseen = bounds_of(admin, partitions)
    candidates = [partition for partition, bounds in before.items() if bounds.stable < bounds.high]
    producers, unclear = producers_of(admin, candidates)
    transactions, why = _transactions(admin, producers, now)
    # What ended since the first look has its marker now.
    again, unclear_again = producers_of(admin, producers)
    unclear |= unclear_again
    after, gone = bounds_of(admin, candidates)
    unseen |= gone
    if why is not None:
        unclear |= dict.fromkeys(producers, why)
    holding = {at: bounds for at, bounds in after.items() if bounds.stable < bounds.high}
    groups = _positions(admin) if holding else _Positions(None)
    held: list[HeldPartition] = []
    for at, bounds in holding.items():
        seen = producers.get(at, ())
        open_transactions = _open_in(at, seen, again.get(at, seen), transactions, unclear.get(at))
        if open_transactions or bounds.stable == before[at].stable or at in unclear:
            held += _findings(
                open_transactions or [Open(at, None, (), unclear.get(at))], _waiting(reader, at, bounds, groups)
            )
    overdue = tuple(transaction.transactional_id for transaction in transactions if transaction.is_overdue)
    names = {str(partition): text for partition, text in unseen.items()}
    names |= {name: reason(error) for name, error in missing.items()}
    return Diagnosis(verdict(held, overdue, names), now, tuple(held), overdue, names)


def _transactions(
    admin: AdminCalls, producers: Mapping[TopicPartition, Sequence[ProducerView]], now: int
) -> tuple[tuple[TransactionView, ...], str | None]:
    """All transactions that are not ended, what coordinators have else under the ids of these producers, and why this
    may lack some."""
    ids = {
        producer.producer_id
        for some in producers.values()
        for producer in some
        if producer.transaction_start_offset is not None
    }
    try:
        listed = {transaction.transactional_id: transaction for transaction in admin.list_managed_transactions(())}
        if ids:
            listed |= {
                transaction.transactional_id: transaction
                for transaction in admin.list_transactions(producer_ids=sorted(ids))
            }
        return transactions_of(admin, listed.values(), now), None
    except KafkaError as error:
        return (), reason(error)


def _open_in(
    at: TopicPartition,
    before: Sequence[ProducerView],
    after: Sequence[ProducerView],
    transactions: Sequence[TransactionView],
    unclear: str | None,
) -> list[Open]:
    """The transactions that were open in both looks, the first one first."""
    still = {(producer.producer_id, producer.transaction_start_offset) for producer in after}
    return [
        Open(at, producer, [other for other in transactions if other.producer_id == producer.producer_id], unclear)
        for producer in sorted(before, key=lambda producer: producer.transaction_start_offset or 0)
        if producer.transaction_start_offset is not None
        and (producer.producer_id, producer.transaction_start_offset) in still
    ]


def _positions(admin: AdminCalls) -> _Positions:
    """The offsets of every group that can be asked."""
    offsets: dict[str, Mapping[TopicPartition, int]] = {}
    failures: dict[str, str] = {}
    try:
        groups = [group.group_id for group in admin.list_groups()]
    except KafkaError as error:
        return _Positions(None, f"groups could not be asked: {reason(error)}")
    for group in groups:
        if len(failures) == _UNASKED_MAX:
            break
        try:
            committed = admin.list_group_offsets(group, require_stable=False)
            offsets[group] = {at: offset.offset for at, offset in committed.items()}
        except KafkaError as error:
            failures[group] = reason(error)
    if not failures:
        return _Positions(offsets)
    unasked = len(groups) - len(offsets) - len(failures)
    texts = [f"group {group!r} could not be asked: {why}" for group, why in failures.items()]
    return _Positions(offsets, "; ".join(texts + ([f"{unasked} more were not asked"] if unasked else [])))


def _waiting(reader: RangeReader, at: TopicPartition, bounds: Bounds, positions: _Positions) -> _Waiting:
    unknown = {"waiting_groups": positions.unknown} if positions.unknown else {}
    try:
        content = content_of(reader, at, bounds.stable, bounds)
    except KafkaError as error:
        reason(error)
        content = None
    groups = None
    if positions.offsets is not None:
        # One that is past the last stable offset reads uncommitted records, and waits for nobody.
        groups = tuple(
            WaitingGroup(group_id, offsets[at], offsets[at] == bounds.stable)
            for group_id, offsets in positions.offsets.items()
            if at in offsets and offsets[at] <= bounds.stable
        )
    return _Waiting(bounds, content, groups, unknown)


def _findings(open_transactions: Sequence[Open], waiting: _Waiting) -> list[HeldPartition]:
    bounds, content = waiting.bounds, waiting.content
    held: list[HeldPartition] = []
    for number, open_transaction in enumerate(open_transactions):
        cause = cause_of(open_transaction)
        held.append(
            HeldPartition(
                open_transaction.partition.topic,
                open_transaction.partition.partition,
                bounds.stable,
                bounds.high,
                number == 0,
                cause,
                None
                if open_transaction.producer is None
                else _holder(open_transaction, open_transaction.producer, content),
                bounds.high - bounds.stable if content is None else content.behind,
                content is None,
                waiting.groups,
                way_out(open_transaction, cause),
                waiting.unknown,
            )
        )
    return held


def _holder(open_transaction: Open, producer: ProducerView, content: RangeContent | None) -> Holder:
    owner = owner_of(open_transaction)
    ranges = content.open_ranges if content is not None else ()
    first = next((open_range for open_range in ranges if open_range.producer_id == producer.producer_id), None)
    begun = None if owner is None or cause_of(open_transaction) is Cause.HANGING else owner.start_time
    since = begun
    if begun is None and first is not None and first.first_timestamp >= 0:
        since = first.first_timestamp
    unknown = {"client_id": NOT_REPORTED, "client_host": NOT_REPORTED}
    if owner is None:
        unknown |= dict.fromkeys(
            ("transactional_id", "state"), open_transaction.unclear or "no coordinator has this producer id"
        )
    if since is None:
        unknown["since"] = "not counted: too many offsets" if first is None else "its first record has no timestamp"
    start = producer.transaction_start_offset
    assert start is not None, "only producers with an open transaction are found"
    return Holder(
        None if owner is None else owner.transactional_id,
        producer.producer_id,
        producer.producer_epoch,
        start,
        producer.last_timestamp,
        since,
        None if owner is None else owner.state,
        None,
        None,
        unknown,
    )
