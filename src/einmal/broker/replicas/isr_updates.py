"""Asks the controller for other in-sync replicas (AlterPartition) where a leader wants them.

One request at a time, for all partitions that wait; sent again until the partition's epoch has moved on in the image.
The answer's ISR is not taken over: the image has it together with the replicas, which a finished reassignment changes,
and in its order with the settings. What a leader wants, and what an answer means to it, is for ``replication.Leader``.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final
from uuid import UUID

from einmal.broker.config import BrokerConfig
from einmal.broker.identity import Identity
from einmal.broker.replicas.partition import Partition
from einmal.broker.replicas.partitions import Partitions
from einmal.broker.resources.supervision import Supervisor
from einmal.broker.rpc.controller_channel import ControllerChannel
from einmal.event_log import EventLog
from einmal.replication.leader import NOT_CARRIED_OUT, IsrProposal
from einmal.rpc.connection import NoAnswer
from einmal.seams import Clock
from einmal.types import ErrorCode
from einmal.wire.api.alter_partition import API as ALTER_PARTITION
from einmal.wire.api.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
    ResponsePartitionData,
)

log = EventLog(__name__)

_VERSION: Final = 3
_TIMEOUT_MS: Final = 2_000
_RETRY_SECONDS: Final = 0.2
_LOOKS_PER_LAG: Final = 4
_LOOK_SECONDS: Final = 1.0
"""How often followers are looked at: so often while one may lag, and at least every second."""
_RECOVERED: Final = 0
"""Leader recovery state: the log is whole."""


class IsrUpdates:
    def __init__(
        self,
        config: BrokerConfig,
        identity: Identity,
        partitions: Partitions,
        controller: ControllerChannel,
        clock: Clock,
    ) -> None:
        self._lag_max_ms = config.replica_lag_time_max_ms
        self._identity = identity
        self._partitions = partitions
        self._controller = controller
        self._clock = clock
        self._supervisor = Supervisor()
        self._wanted: dict[Partition, None] = {}
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            self._supervisor.run("asking for in-sync replicas", self._send_all),
            self._supervisor.run("looking at in-sync replicas", self._look_again),
        ]

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    def look_at(self, partition: Partition) -> None:
        """The leader of a partition may want its ISR changed."""
        self._wanted[partition] = None
        self._wake.set()

    def look_at_all(self) -> None:
        """As time goes by, and when brokers come and go."""
        now_ms = self._clock.now().monotonic_ms
        for partition in self._partitions:
            leader = partition.replication
            if leader is None or len(leader.replicas) == 1:
                continue
            partition.advance(leader.look(partition.log_end_offset, now_ms))
            if leader.propose(now_ms) is not None:
                self.look_at(partition)

    async def _look_again(self) -> None:
        seconds = min(_LOOK_SECONDS, self._lag_max_ms / 1000 / _LOOKS_PER_LAG)
        while True:
            await asyncio.sleep(seconds)
            self.look_at_all()

    async def _send_all(self) -> None:
        while True:
            # After a restart by the supervisor the event that announced this work is spent.
            if self._wanted:
                self._wake.set()
            await self._wake.wait()
            self._wake.clear()
            proposals = self._proposals()
            if proposals and await self._send(proposals):
                # Not decided yet: the image comes, or they are sent again.
                await asyncio.sleep(_RETRY_SECONDS)

    def _proposals(self) -> dict[Partition, IsrProposal]:
        """Return the proposals of the leaders now, and forget the leaders that have none any more."""
        now_ms = self._clock.now().monotonic_ms
        proposals = {}
        for partition in list(self._wanted):
            leader = partition.replication
            proposal = None if leader is None else leader.propose(now_ms)
            if proposal is None:
                del self._wanted[partition]
            else:
                proposals[partition] = proposal
        return proposals

    async def _send(self, proposals: dict[Partition, IsrProposal]) -> bool:
        """Send one request; whether anything in it is left undecided."""
        try:
            response = await self._controller.ask(
                ALTER_PARTITION, _VERSION, self._request(proposals), timeout_ms=_TIMEOUT_MS
            )
        except NoAnswer as error:
            log.warning(
                "isr_update_unanswered",
                "the controller was not asked for other in-sync replicas: %(error)s",
                error=error,
            )
            return True
        if response.error_code is not ErrorCode.none:
            refused = "the controller refuses to alter partitions: %(error)s"
            log.warning("isr_updates_refused", refused, error=response.error_code.name)
            return True
        by_id: dict[tuple[UUID | None, int], Partition] = {
            (proposal.topic_id, proposal.topic_partition.partition): proposal for proposal in proposals
        }
        undecided = False
        for topic in response.topics:
            for answer in topic.partitions:
                partition = by_id.get((topic.topic_id, answer.partition_index))
                if partition is not None:
                    undecided |= self._take(partition, proposals[partition], answer)
        return undecided

    def _request(self, proposals: dict[Partition, IsrProposal]) -> AlterPartitionRequest:
        own_id, own_epoch = self._identity.node_id, self._identity.broker_epoch
        topics: dict[UUID, list[RequestPartitionData]] = {}
        for partition, proposal in proposals.items():
            topics.setdefault(partition.topic_id, []).append(
                RequestPartitionData(
                    partition.topic_partition.partition,
                    proposal.leader_epoch,
                    tuple(
                        BrokerState(broker_id, own_epoch if broker_id == own_id else epoch)
                        for broker_id, epoch in proposal.isr
                    ),
                    _RECOVERED,
                    proposal.partition_epoch,
                )
            )
        asked = tuple(RequestTopicData(topic_id, tuple(partitions)) for topic_id, partitions in topics.items())
        return AlterPartitionRequest(own_id, own_epoch, asked)

    def _take(self, partition: Partition, proposal: IsrProposal, answer: ResponsePartitionData) -> bool:
        """One partition's answer; whether the proposal is still undecided."""
        leader = partition.replication
        if leader is None or leader.leader_epoch != proposal.leader_epoch:
            return False
        now_ms = self._clock.now().monotonic_ms
        if answer.error_code is ErrorCode.none:
            log.info(
                "isr_changed",
                "%(partition)s: in sync are now %(isr)s",
                partition=partition.topic_partition,
                isr=list(answer.isr),
            )
            return leader.partition_epoch == proposal.partition_epoch
        log.info(
            "isr_change_refused",
            "%(partition)s: no other in-sync replicas: %(error)s",
            partition=partition.topic_partition,
            error=answer.error_code.name,
        )
        if answer.error_code in NOT_CARRIED_OUT:
            leader.refused(proposal, now_ms)
            return False
        return True
