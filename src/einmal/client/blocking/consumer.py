"""The blocking consumer: the asyncio one in a thread of its own. Same names, same arguments."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from einmal.client.aio import consumer as aio
from einmal.client.aio.consuming import rebalancing
from einmal.client.blocking.loop_thread import LoopThread
from einmal.client.config import ConsumerSettings, parse
from einmal.client.errors import ClientClosed, InvalidState, KafkaError
from einmal.client.habits import missing_method
from einmal.client.records import ConsumerRecord, GroupMetadata, LogEnds, OffsetAndMetadata, OffsetAndTimestamp
from einmal.types import TopicPartition

RebalanceCallback = Callable[[list[TopicPartition]], None]


class Consumer:
    """Takes Kafka's dotted names as a mapping, their snake_case forms as keywords, or both.

    ``with``, or ``close()``. Used by one thread at a time, and by one process: after a fork the child needs its own.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self.settings = parse(ConsumerSettings, config, settings)
        self._process_id: int | None = None

        def make() -> aio.Consumer:
            # In one process only. Another one would read nothing, and commit nothing, without an error.
            if self._process_id not in (None, os.getpid()):
                raise InvalidState(
                    meaning="what this consumer reads, and its positions, are of the process that forked this one",
                    what_to_do="make a Consumer after the fork",
                )
            self._process_id = os.getpid()
            return aio.Consumer(config, **settings)

        self._thread = LoopThread(make, "einmal-consumer")
        self._polled: list[ConsumerRecord] = []
        """Records of the ``poll`` that is under way."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_method(self, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def subscribe(
        self,
        topics: Iterable[str],
        *,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
    ) -> None:
        """Read these topics as a member of the group; partitions come with the next polls.

        The callbacks run while ``poll`` waits, in another thread; they may use this consumer (commit, seek).
        """
        assigned, revoked = _in_another_thread(on_assigned), _in_another_thread(on_revoked)
        self._thread.call(lambda consumer: consumer.subscribe(topics, on_assigned=assigned, on_revoked=revoked))

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions, without a group's rebalances."""
        wanted = list(partitions)
        self._thread.call(lambda consumer: consumer.assign(wanted))

    def assignment(self) -> list[TopicPartition]:
        return self._thread.call(lambda consumer: consumer.assignment())

    def pause(self, *partitions: TopicPartition) -> None:
        """Give no records of these until ``resume``; what was fetched is kept."""
        self._thread.call(lambda consumer: consumer.pause(*partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        self._thread.call(lambda consumer: consumer.resume(*partitions))

    def paused(self) -> list[TopicPartition]:
        return self._thread.call(lambda consumer: consumer.paused())

    def group_metadata(self) -> GroupMetadata:
        """This member, for ``send_offsets_to_transaction`` (KIP-447). Raises CommitFailed while it is none."""
        return self._thread.call(lambda consumer: consumer.group_metadata())

    def poll(self, timeout_ms: int = 1_000, max_records: int | None = None) -> list[ConsumerRecord]:
        """The next records, at most ``max.poll.records``; an empty list when none come within ``timeout_ms``."""
        polled: list[ConsumerRecord] = []
        self._polled = polled

        async def poll(consumer: aio.Consumer) -> list[ConsumerRecord]:
            polled.extend(await consumer.poll(timeout_ms, max_records))
            return polled

        try:
            records = self._thread.run(poll)
            if self._thread.is_closed:
                raise ClientClosed()
            return records
        except KafkaError:
            raise
        except BaseException:
            # A signal handler has raised it. Their positions have moved, and closing may commit them.
            with suppress(ClientClosed):  # the handler has closed it
                self._thread.call(lambda consumer: consumer.give_back(polled))
            raise
        finally:
            self._polled = []

    def __iter__(self) -> Iterator[ConsumerRecord]:
        while True:
            yield from self._thread.client.one_by_one(self.poll())

    def seek(self, topic_partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Read on from this offset with the next poll."""
        self._thread.call(lambda consumer: consumer.seek(topic_partition, offset))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Read these (all, when none is named) from the log's start."""
        self._thread.call(lambda consumer: consumer.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Read these (all, when none is named) from the end on: the last stable offset under read_committed."""
        self._thread.call(lambda consumer: consumer.seek_to_end(*partitions))

    def position(self, topic_partition: TopicPartition) -> int:
        """The next offset that ``poll`` will give."""
        return self._thread.run(lambda consumer: consumer.position(topic_partition))

    def lag(self, topic_partition: TopicPartition) -> int | None:
        """Offsets between the position and the readable end, as of the last fetch; None: not known yet."""
        return self._thread.call(lambda consumer: consumer.lag(topic_partition))

    def ends(self, topic_partition: TopicPartition) -> LogEnds:
        """Last stable offset and high watermark, as of the last fetch; -1: not known."""
        return self._thread.call(lambda consumer: consumer.ends(topic_partition))

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Commit these offsets (of the *next* record), by default the positions after the last poll."""
        self._thread.run(lambda consumer: consumer.commit(offsets))

    def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's offsets of these partitions, by default of the assigned ones; None where there is none."""
        return self._thread.run(lambda consumer: consumer.committed(*partitions))

    def beginning_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """The first offsets that the logs still hold."""
        return self._thread.run(lambda consumer: consumer.beginning_offsets(*partitions))

    def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """The ends this consumer may read to: last stable offsets under read_committed, else high watermarks."""
        return self._thread.run(lambda consumer: consumer.end_offsets(*partitions))

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time (ms); None where all records are older."""
        return self._thread.run(lambda consumer: consumer.offsets_for_times(times))

    def list_offsets_each(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | KafkaError]:
        """For each partition the offset at EARLIEST, LATEST or a time (ms), as far as this consumer may read. A
        partition that has no leader, or does not exist, has its error instead."""
        return self._thread.run(lambda consumer: consumer.list_offsets_each(wanted))

    def give_back(self, records: Iterable[ConsumerRecord]) -> None:
        """Records of the last ``poll`` that were not processed are read once more, and not committed."""
        given = list(records)
        self._thread.call(lambda consumer: consumer.give_back(given))

    def partitions_for_topic(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic that exists. Raises UnknownTopic."""
        return self._thread.run(lambda consumer: consumer.partitions_for_topic(topic))

    def close(self) -> None:
        """Commit if that is automatic, leave the group, close the connections."""

        async def end(consumer: aio.Consumer) -> None:
            # A signal handler closes it, for one: the application does not get them.
            consumer.give_back(self._polled)
            await consumer.close()

        self._thread.close(end)


def _in_another_thread(callback: RebalanceCallback | None) -> rebalancing.RebalanceCallback | None:
    if callback is None:
        return None

    def call(partitions: list[TopicPartition]) -> None:
        try:
            callback(partitions)
        except StopIteration as error:
            # No future can carry it: poll would wait for ever.
            raise RuntimeError("a rebalance callback raised StopIteration") from error

    async def run(partitions: list[TopicPartition]) -> None:
        # Not in the loop's own thread: a blocking call of the callback would wait for itself.
        await asyncio.get_running_loop().run_in_executor(None, call, partitions)

    return run
