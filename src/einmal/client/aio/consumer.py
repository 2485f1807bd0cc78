"""The consumer on asyncio: subscribe or assign, poll, seek, commit.

``poll`` drives everything that the application must see in order: rebalances and their callbacks, lost positions,
errors of fetches. Fetches themselves run ahead in the background (``fetcher``). The decisions are in ``consumer_core``
and ``group_core``.
"""

from __future__ import annotations

import asyncio
import random as random_module
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from einmal.client.aio.consuming.fetcher import Fetcher
from einmal.client.aio.consuming.membership import GroupMembership
from einmal.client.aio.consuming.missing_partitions import MissingPartitions
from einmal.client.aio.consuming.offsets import EARLIEST, LATEST, list_offsets, list_offsets_each
from einmal.client.aio.consuming.positions import Positions
from einmal.client.aio.consuming.rebalancing import RebalanceCallback, Rebalancing
from einmal.client.aio.consuming.turns import PollTurns
from einmal.client.aio.done import DONE, DoneAtOnce
from einmal.client.aio.network.changes import Changes
from einmal.client.aio.network.cluster import Cluster
from einmal.client.config import ConsumerSettings, parse
from einmal.client.cores.consumer_core import ConsumerCore
from einmal.client.cores.partition_reading import Reset
from einmal.client.errors import ClientClosed, InvalidState, KafkaError, error_for
from einmal.client.habits import missing_method
from einmal.client.records import (
    ConsumerRecord,
    GroupMetadata,
    LogEnds,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    by_partition,
    check_max_records,
    check_timeout,
    check_topic,
    partition_of,
    position_of,
    positions_of,
    times_of,
)
from einmal.seams import Clock, Network, SystemClock, TcpNetwork
from einmal.types import ErrorCode, IsolationLevel, TopicPartition

_RESETS: Final = {"earliest": Reset.EARLIEST, "latest": Reset.LATEST, "none": None}


class Consumer:
    """Create it inside a running event loop; ``async with``, or ``await close()``. Used by one task at a time."""

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        random: random_module.Random | None = None,
        **settings: Any,
    ) -> None:
        self.settings = parse(ConsumerSettings, config, settings)
        self.isolation = IsolationLevel[self.settings.isolation_level.upper()]
        self._cluster = Cluster(
            self.settings,
            network=network or TcpNetwork(),
            clock=clock or SystemClock(),
            source=random or random_module.Random(),
        )
        self._core = ConsumerCore(
            self.isolation, _RESETS[self.settings.auto_offset_reset], check_crcs=self.settings.check_crcs
        )
        self._changes = Changes()
        self._rebalancing: Rebalancing | None = None
        membership: GroupMembership | None = None
        if self.settings.group_id is not None:
            self._rebalancing = Rebalancing(self._core, self._cluster, self.settings, self._changes)
            membership = self._rebalancing.membership
        self._missing = MissingPartitions(self._core, self._cluster)
        self._positions = Positions(self._core, self._cluster, self.isolation, membership, self._changes.announce)
        self._fetcher = Fetcher(self._core, self._cluster, self.settings, self.isolation, self._changes.announce)
        self._turns = PollTurns(self._changes, self._cluster.now_ms, self._check_open, self._rebalancing)
        self._is_closed = False

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_method(self, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # --- what to read ---------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str],
        *,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
    ) -> DoneAtOnce:
        """Read these topics as a member of the group; partitions come with the next polls.

        The callbacks get the partitions that were assigned, or are about to be revoked, and run inside ``poll``. After
        ``on_revoked`` of partitions that are still owned their offsets can be committed for the last time.
        """
        if isinstance(topics, str):
            raise InvalidState(meaning="subscribe() takes a list of topics", what_to_do=f"write [{topics!r}]")
        wanted = list(topics)
        for topic in wanted:
            check_topic(topic)
        rebalancing = self._grouped()
        if self._core.assignment and not rebalancing.is_subscribed:
            raise InvalidState(meaning="partitions are assigned by hand", what_to_do="assign([]) first")
        rebalancing.subscribe(wanted, on_assigned, on_revoked)
        return DONE

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> DoneAtOnce:
        """Read exactly these partitions, without a group's rebalances. The group id, if any, only keeps offsets.

        A partition that does not exist is logged (assigned_partitions_missing), and read once it is created.
        """
        if self._rebalancing is not None and self._rebalancing.is_subscribed:
            raise InvalidState(meaning="topics are subscribed to", what_to_do="use either subscribe() or assign()")
        wanted = [partition_of(partition) for partition in partitions]
        for partition in wanted:
            self._cluster.want_topic(partition.topic, may_create=self.settings.allow_auto_create_topics)
        self._core.assign(wanted)
        return DONE

    def assignment(self) -> list[TopicPartition]:
        return sorted(self._core.assignment)

    def pause(self, *partitions: TopicPartition) -> DoneAtOnce:
        """Return no records of these until ``resume``; fetched records are kept."""
        self._core.pause([partition_of(partition) for partition in partitions])
        return DONE

    def resume(self, *partitions: TopicPartition) -> DoneAtOnce:
        self._core.resume([partition_of(partition) for partition in partitions])
        return DONE

    def paused(self) -> list[TopicPartition]:
        return sorted(self._core.paused)

    def group_metadata(self) -> GroupMetadata:
        """This member, for ``send_offsets_to_transaction`` (KIP-447).

        Raises CommitFailed while a subscribed consumer is no member: without a generation there is no fencing.
        """
        return self._grouped().metadata()

    def _grouped(self) -> Rebalancing:
        if self._rebalancing is None:
            raise InvalidState(meaning="this consumer has no group", what_to_do="set group.id")
        return self._rebalancing

    # --- poll -----------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int = 1_000, max_records: int | None = None) -> list[ConsumerRecord]:
        """The next records, at most ``max.poll.records``; an empty list when none come within ``timeout_ms``.

        Raises the error of a fetch (OffsetOutOfRange, NoOffset, NotAuthorized, CorruptData), the one that ended the
        membership, or a broker's rejection of the credentials. The consumer can be polled again.
        """
        check_timeout(timeout_ms)
        most = self.settings.max_poll_records if max_records is None else max_records
        check_max_records(most)
        deadline = self._cluster.deadline(timeout_ms)
        if not await self._turns.take(deadline):
            return []
        try:
            return await self._poll(most, deadline)
        finally:
            self._turns.give_back()

    async def _poll(self, most: int, deadline: int) -> list[ConsumerRecord]:
        self._core.take_back()
        while True:
            # Another task may have closed it meanwhile.
            self._check_open()
            self._cluster.refresh_when_old()
            if self._rebalancing is not None:
                self._rebalancing.polled()
                await self._rebalancing.rebalance(deadline)
                await self._rebalancing.commit_when_due()
                self._rebalancing.polled()
            self._positions.look_up()
            self._missing.report()
            if records := self._core.take(most):
                self._fetcher.fetch_ahead()
                return records
            self._fetcher.fetch_ahead()
            _raise_if_hopeless(self._cluster)
            left = deadline - self._cluster.now_ms()
            if left <= 0:
                # Fetches run between the calls of a loop that never waits, as that of poll(0).
                await asyncio.sleep(0)
                return []
            if not self._core.fetches.has_fetched:
                await self._changes.wait(min(left, self._fetcher.pause_ms()))

    def give_back(self, records: Iterable[ConsumerRecord]) -> None:
        """Records of the last ``poll`` that the application did not get are read once more."""
        self._core.take_back(records)

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        while not self._is_closed:
            try:
                records = await self.poll()
            except ClientClosed:
                # Another task has closed it.
                return
            for record in self.one_by_one(records):
                yield record

    def one_by_one(self, records: list[ConsumerRecord]) -> Iterator[ConsumerRecord]:
        """Yield the records of ``poll`` one by one: records that were not requested yet are not committed either."""
        return self._core.one_by_one(records)

    # --- positions ------------------------------------------------------------------------------------------------

    def seek(self, topic_partition: TopicPartition, offset: int | OffsetAndMetadata) -> DoneAtOnce:
        """Read on from this offset with the next poll."""
        at = position_of(offset)
        self._core.seek(partition_of(topic_partition), at.offset, at.leader_epoch)
        return DONE

    def seek_to_beginning(self, *partitions: TopicPartition) -> DoneAtOnce:
        """Read these partitions (default: all) from the log's start."""
        self._core.seek_by(list(map(partition_of, partitions)) or self._core.assignment, Reset.EARLIEST)
        return DONE

    def seek_to_end(self, *partitions: TopicPartition) -> DoneAtOnce:
        """Read these partitions (default: all) from the end: the last stable offset under read_committed."""
        self._core.seek_by(list(map(partition_of, partitions)) or self._core.assignment, Reset.LATEST)
        return DONE

    async def position(self, topic_partition: TopicPartition) -> int:
        """The next offset that ``poll`` will return. Raises RetriableError when it cannot be found in time."""
        partition = partition_of(topic_partition)
        deadline = self._cluster.deadline()
        while (position := self._core.position(partition)) is None:
            self._check_open()
            self._positions.look_up()
            if (error := self._core.lookup_errors.pop(partition, None)) is not None:
                raise error
            _raise_if_hopeless(self._cluster)
            left = deadline - self._cluster.now_ms()
            if left <= 0:
                raise error_for(ErrorCode.request_timed_out, f"the position of {partition}")
            if self._core.position(partition) is None:
                await self._changes.wait(min(left, self._fetcher.pause_ms()))
        return position

    def lag(self, topic_partition: TopicPartition) -> int | None:
        """Offsets between the position and the readable end, as of the last fetch; None: not known yet."""
        return self._core.lag(partition_of(topic_partition))

    def ends(self, topic_partition: TopicPartition) -> LogEnds:
        """Last stable offset and high watermark, as of the last fetch; -1: not known."""
        return self._core.ends(partition_of(topic_partition))

    # --- offsets --------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Commit these offsets (of the *next* record), by default the positions after the last poll.

        Raises CommitFailed when the group has assigned the partitions to others.
        """
        self._check_open()
        membership = self._grouped().membership
        positions = self._core.positions() if offsets is None else positions_of(offsets)
        await membership.commit(positions, deadline=self._cluster.deadline())

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's offsets of these partitions, by default of the assigned ones; None where there is none."""
        wanted = [partition_of(partition) for partition in partitions] or self.assignment()
        return await self._grouped().membership.committed(wanted, deadline=self._cluster.deadline())

    async def beginning_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """The first offsets that the logs still hold."""
        return _ends(await self._offsets(_each_at(partitions, EARLIEST)))

    async def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """The ends this consumer may read to: last stable offsets under read_committed, else high watermarks."""
        return _ends(await self._offsets(_each_at(partitions, LATEST)))

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time (ms); None where all records are older. Raises LocalError for a
        negative time."""
        wanted = times_of(times)
        offsets = await self._offsets(wanted)
        return {partition: None if offsets[partition].offset < 0 else offsets[partition] for partition in wanted}

    async def _offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        self._check_open()
        return await list_offsets(self._cluster, wanted, self.isolation, deadline=self._cluster.deadline())

    async def list_offsets_each(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | KafkaError]:
        """For each partition the offset at EARLIEST, LATEST or a time (ms), as far as this consumer may read. A
        partition that has no leader, or does not exist, has its error instead."""
        self._check_open()
        return await list_offsets_each(
            self._cluster, by_partition(wanted), self.isolation, deadline=self._cluster.deadline()
        )

    async def partitions_for_topic(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic that exists. Raises UnknownTopic."""
        check_topic(topic)
        deadline = self._cluster.deadline()
        known = await self._cluster.topic(topic, deadline=deadline, may_create=False)
        return [TopicPartition(topic, index) for index in known.partitions]

    # --- the end --------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed()

    async def close(self) -> None:
        """Commit if that is automatic, leave the group, close the connections."""
        if self._is_closed:
            return
        self._is_closed = True
        self._changes.announce()
        await self._fetcher.close()
        await self._positions.close()
        try:
            if self._rebalancing is not None:
                await self._rebalancing.close()
        finally:
            await self._cluster.close()


def _raise_if_hopeless(cluster: Cluster) -> None:
    """Raises a broker's rejection of the credentials, or NoBrokerReachable."""
    if (rejection := cluster.rejection) is not None:
        raise rejection
    cluster.raise_if_alone()


def _each_at(partitions: Sequence[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    return {partition_of(partition): timestamp for partition in partitions}


def _ends(ends: Mapping[TopicPartition, OffsetAndTimestamp]) -> dict[TopicPartition, int]:
    return {partition: end.offset for partition, end in ends.items()}
