"""The active controller at run time: its shard on the metadata partition, while this node leads the quorum.

A new controller begins with the image that this node has anyway and replays the records after it, also uncommitted
ones; no request is answered before these are committed. Nobody noticed the end of brokers that died together with the
last controller: each unfenced broker is contacted once, and treated as lost if it does not answer.

Decides nothing itself. Knows the API by which a broker is contacted, and no other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, assert_never

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig
from einmal.broker.coordinators.shard_runtime import ShardRuntime
from einmal.broker.replicas.partition import Partition
from einmal.broker.rpc.peers import Asker
from einmal.event_log import EventLog
from einmal.metadata import records
from einmal.metadata.controller import Controller
from einmal.metadata.features import FIRST_LEVELS, TRANSACTION_VERSION
from einmal.metadata.plan import (
    BrokerFenced,
    BrokerUnfenced,
    CallOnBrokers,
    ControllerAction,
    ControllerDefaults,
    LedAtRisk,
    MetadataDecision,
)
from einmal.metadata.records import MetadataRecord, UserScramCredentialRecord
from einmal.metadata.scram_users import MECHANISM_NUMBERS
from einmal.rpc.connection import NoAnswer
from einmal.seams import Clock
from einmal.types import BrokerId, ErrorCode, Instant, Offset
from einmal.wire.api.api_versions import API as API_VERSIONS
from einmal.wire.api.api_versions import ApiVersionsRequest
from einmal.wire.errors import WireError

log = EventLog(__name__)

R = TypeVar("R")

_CALL_TIMEOUT_MS: Final = 1_000
_ERRORS: Final = {
    ErrorCode.not_coordinator: ErrorCode.not_controller,
    ErrorCode.coordinator_load_in_progress: ErrorCode.not_controller,
    # The change may be committed later, or not.
    ErrorCode.coordinator_not_available: ErrorCode.request_timed_out,
}
"""A controller's error code for each code of a shard's runtime, which are those of a coordinator."""


class ControllerRuntime:
    def __init__(
        self, config: BrokerConfig, metadata: ClusterMetadata, peers: Asker, clock: Clock, source: random.Random
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._peers = peers
        self._clock = clock
        self._source = source
        self._runtime: ShardRuntime[Controller, MetadataRecord, ControllerAction] | None = None
        self._tasks: dict[asyncio.Task[object], None] = {}
        self.unclean_elections = 0
        """Leaders elected here that may lack committed records."""

    @property
    def is_active(self) -> bool:
        """Whether this node decides now."""
        return self._runtime is not None and self._runtime.is_loaded

    @property
    def next_offset(self) -> Offset:
        """The offset of the next decision's first record. Only while active."""
        assert self._runtime is not None, "not the active controller"
        return self._runtime.partition.log_end_offset

    # --- life ----------------------------------------------------------------------------------------------------

    def lead(self, partition: Partition) -> None:
        """This node leads the quorum now, whose log is this partition."""
        self.resign()
        log.info(
            "controller_elected",
            "node %(node)d is the active controller, epoch %(epoch)d",
            node=self._config.node_id,
            epoch=partition.leader_epoch,
        )
        self._runtime = ShardRuntime(
            partition,
            self._new_controller,
            records,
            clock=self._clock,
            perform=self._perform,
            first_offset=lambda: self._metadata.next_offset,
        )
        self._runtime.start()

    def resign(self) -> None:
        """Another node leads the quorum, or none does: waiting requests get NOT_CONTROLLER."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            runtime.stop()
        for task in list(self._tasks):
            task.cancel()

    def _new_controller(self) -> Controller:
        config = self._config
        transaction_version = {TRANSACTION_VERSION: config.transaction_version}
        rebalance_ms = config.leader_imbalance_check_interval_seconds * 1000
        return Controller(
            ControllerDefaults(
                partitions=config.num_partitions,
                replication_factor=config.default_replication_factor,
                min_insync_replicas=config.min_insync_replicas,
                unclean_leader_election=config.unclean_leader_election_enable,
                session_timeout_ms=config.broker_session_timeout_ms,
                own_broker=BrokerId(config.node_id) if config.is_broker else None,
                preferred_leaders_every_ms=rebalance_ms if config.auto_leader_rebalance_enable else None,
                features={**FIRST_LEVELS, **transaction_version},
                scram_credentials=self._first_users(),
                fixed_features=transaction_version if TRANSACTION_VERSION in config.given else {},
            ),
            self._metadata.image.copy(),
        )

    def _first_users(self) -> tuple[UserScramCredentialRecord, ...]:
        """Return the credentials of the first users of a new cluster; empty: the cluster is not new."""
        if self._metadata.image.features:
            return ()
        return tuple(
            UserScramCredentialRecord(
                user.name, MECHANISM_NUMBERS[user.mechanism], *user.credential(self._source.randbytes)
            )
            for user in self._config.first_users
        )

    # --- requests ------------------------------------------------------------------------------------------------

    async def submit(self, decide: Callable[[Controller, Instant], MetadataDecision[R]]) -> R | ErrorCode:
        """Make one change, and wait until it is committed.

        An ErrorCode: NOT_CONTROLLER, or REQUEST_TIMED_OUT if its outcome is unknown; or the decision's own.
        """
        runtime = self._runtime
        if runtime is None:
            return ErrorCode.not_controller
        answer = await runtime.submit(decide)
        return _ERRORS.get(answer, answer) if isinstance(answer, ErrorCode) else answer

    def broker_lost(self, broker_id: BrokerId, broker_epoch: int, *, is_gone: bool = False) -> None:
        """A broker's connection is lost, or none could be opened: fence it, unless it sends a heartbeat at once.

        ``is_gone``: nothing listens at its address any more.
        """
        if self.is_active:
            self._in_background(
                self.submit(
                    lambda controller, now: controller.broker_lost(broker_id, broker_epoch, now, is_gone=is_gone)
                )
            )

    # --- what follows from decisions -----------------------------------------------------------------------------

    def _perform(self, action: ControllerAction) -> None:
        match action:
            case CallOnBrokers(brokers):
                for broker_id, broker_epoch in brokers:
                    if broker_id != self._config.node_id:
                        self._in_background(self._call_on(broker_id, broker_epoch))
            case BrokerFenced(broker_id, broker_epoch, reason):
                fenced = "broker %(broker)d, epoch %(epoch)d, is fenced: %(reason)s"
                log.warning("broker_fenced", fenced, broker=broker_id, epoch=broker_epoch, reason=reason)
            case BrokerUnfenced(broker_id, broker_epoch):
                log.info(
                    "broker_unfenced",
                    "broker %(broker)d, epoch %(epoch)d, takes part",
                    broker=broker_id,
                    epoch=broker_epoch,
                )
            case LedAtRisk():
                self.unclean_elections += 1
                self._tell_of_risk(action)
            case _:
                assert_never(action)

    def _tell_of_risk(self, led: LedAtRisk) -> None:
        # No other replica could have more records than the only one.
        if led.has_others:
            log.error(
                "partition_led_at_risk",
                "%(partition)s is led by broker %(broker)d, which may lack committed records (%(election)s election)",
                partition=f"{led.topic}-{led.partition_id}",
                broker=led.leader,
                election=led.outcome.name.lower().replace("_", " "),
            )

    async def _call_on(self, broker_id: BrokerId, broker_epoch: int) -> None:
        try:
            await self._peers.ask(broker_id, API_VERSIONS, 0, ApiVersionsRequest(), timeout_ms=_CALL_TIMEOUT_MS)
        except (NoAnswer, WireError) as error:
            is_gone = isinstance(error.__cause__, ConnectionRefusedError)
            self.broker_lost(broker_id, broker_epoch, is_gone=is_gone)

    def _in_background(self, work: Coroutine[Any, Any, object]) -> None:
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
