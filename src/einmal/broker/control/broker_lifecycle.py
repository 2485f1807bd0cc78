"""This broker as a member of its cluster: registration, heartbeats and controlled shutdown.

A broker is fenced until its image has its own registration; then its heartbeats unfence it. They have a connection of
their own to the active controller, which notices the end of this process by the end of the connection. Before a clean
stop the broker asks the controller to move its leaderships.

Knows the requests to the controller, not how it decides them.
"""

from __future__ import annotations

import asyncio
from typing import Final

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig
from einmal.broker.control.controller_link import ControllerLink
from einmal.broker.control.epoch_files import EpochFiles
from einmal.broker.identity import Identity
from einmal.broker.listeners import ConfigError
from einmal.broker.listening import Listening
from einmal.broker.replicas.partitions import Partitions
from einmal.broker.resources.supervision import Supervisor
from einmal.event_log import EventLog
from einmal.metadata.features import SUPPORTED_FEATURES
from einmal.types import ErrorCode
from einmal.wire.api.broker_heartbeat import API as BROKER_HEARTBEAT
from einmal.wire.api.broker_heartbeat import BrokerHeartbeatRequest
from einmal.wire.api.broker_registration import API as BROKER_REGISTRATION
from einmal.wire.api.broker_registration import BrokerRegistrationRequest, Feature, Listener

log = EventLog(__name__)

_REGISTRATION_VERSION: Final = 4
_HEARTBEAT_VERSION: Final = 1
_RETRY_SECONDS: Final = 0.05
_DUPLICATE_RETRY_SECONDS: Final = 0.2
_FIRST_REPORT_SECONDS: Final = 2.0
_REPORT_SECONDS: Final = 10.0
"""When the log first names what a start waits for, and how often."""
_APPLIED_SECONDS: Final = 0.5
_SHUTDOWN_SECONDS: Final = 5.0
_SHUTDOWN_UNANSWERED_SECONDS: Final = 1.0
"""After so long without an answer the stop continues: perhaps the controllers are stopping too."""
_SHUTDOWN_BEAT_SECONDS: Final = 0.05
_SOON: Final = (ErrorCode.not_controller, ErrorCode.request_timed_out)
"""Another controller can answer, or the same one in a moment."""


class BrokerLifecycle:
    def __init__(
        self,
        config: BrokerConfig,
        identity: Identity,
        files: EpochFiles,
        listening: Listening,
        metadata: ClusterMetadata,
        partitions: Partitions,
        controller: ControllerLink,
    ) -> None:
        self._config = config
        self._identity = identity
        self._files = files
        self._listening = listening
        self._metadata = metadata
        self._partitions = partitions
        self._controller = controller
        self._supervisor = Supervisor()
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._unfenced: asyncio.Future[None] | None = None
        self._wants_shutdown = False
        self._may_shut_down = asyncio.Event()
        self.is_unfenced = False
        self._answered_at: float | None = None
        """When a heartbeat was last answered, by the event loop's time."""

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to register and to send heartbeats."""
        loop = asyncio.get_running_loop()
        self._unfenced = loop.create_future()
        self._task = loop.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        assert self._unfenced is not None
        if error is None:
            self._unfenced.cancel()
        elif not self._unfenced.done():
            self._unfenced.set_exception(error)
        else:
            task.get_loop().call_exception_handler({"message": "a broker's heartbeats ended", "exception": error})

    async def unfenced(self) -> None:
        """Wait until this broker is unfenced. Raises ConfigError when the cluster rejects it, or OSError."""
        assert self._unfenced is not None, "not started"
        await asyncio.shield(self._unfenced)

    async def shut_down(self) -> None:
        """Have this broker's leaderships moved to others, if there are any, within a few seconds."""
        others = [
            broker
            for broker in self._metadata.image.brokers.values()
            if broker.is_active and broker.broker_id != self._config.node_id
        ]
        if not (self.is_unfenced and others and self._config.controlled_shutdown_enable):
            return
        self._wants_shutdown = True
        self._wake.set()
        timer = asyncio.get_running_loop().call_later(_SHUTDOWN_SECONDS, self._may_shut_down.set)
        await self._may_shut_down.wait()
        timer.cancel()

    async def stop(self) -> None:
        """Send no more heartbeats."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def stopped_cleanly(self) -> None:
        """Record that all data of this broker is on disk. Raises OSError."""
        if self._identity.broker_epoch >= 0:
            self._files.remember()

    def silent_seconds(self) -> float:
        """How long ago the controller has last answered a heartbeat; 0: it never has."""
        return 0.0 if self._answered_at is None else asyncio.get_running_loop().time() - self._answered_at

    def settings_changed(self) -> None:
        """Some topics' settings may have changed, and with them whether a crash may lose data."""
        if self._config.flush_each:
            survives = all(partition.config.flush_each for partition in self._partitions)
            self._files.settled(survives_power_cut=survives)

    # --- the loop ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        await self._register()
        while not await self._metadata.until(lambda: self._metadata.is_applied, _APPLIED_SECONDS):
            # Meanwhile the controller may have forgotten it again.
            await self._beat()
        self.settings_changed()
        await self._supervisor.run("the broker's heartbeat", self._beat_on)

    async def _beat_on(self) -> None:
        loop = asyncio.get_running_loop()
        answered_at = loop.time()
        while True:
            self._wake.clear()
            is_answered = await self._beat()
            if is_answered or not self._wants_shutdown:
                answered_at = loop.time()
            elif loop.time() - answered_at >= _SHUTDOWN_UNANSWERED_SECONDS:
                self._may_shut_down.set()
            await self._pause(is_answered)

    async def _pause(self, is_answered: bool) -> None:
        """Until the next heartbeat is due."""
        if not is_answered:
            seconds = _RETRY_SECONDS
        elif self._wants_shutdown or not (self.is_unfenced or self._partitions.is_disk_broken):
            seconds = _SHUTDOWN_BEAT_SECONDS
        else:
            seconds = self._config.broker_heartbeat_interval_ms / 1000
        timer = asyncio.get_running_loop().call_later(seconds, self._wake.set)
        await self._wake.wait()
        timer.cancel()

    # --- registration --------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        """Register, with retries. Raises ConfigError when no controller ever accepts this broker."""
        loop, node_id = asyncio.get_running_loop(), self._config.node_id
        report_at = loop.time() + _FIRST_REPORT_SECONDS
        self._files.write_running()
        while True:
            answer = await self._controller.ask(BROKER_REGISTRATION, _REGISTRATION_VERSION, self._registration())
            error = self._controller.refusal if answer is None else answer.error_code
            if answer is not None and error is ErrorCode.none:
                break
            if error in (ErrorCode.inconsistent_cluster_id, ErrorCode.unsupported_version):
                raise ConfigError(self._why_refused(error))
            if loop.time() >= report_at:
                report_at = loop.time() + _REPORT_SECONDS
                missing = self._what_is_missing(error)
                log.warning("registration_waits", "node %(node)d waits for %(missing)s", node=node_id, missing=missing)
            is_duplicate = error is ErrorCode.duplicate_broker_registration
            await asyncio.sleep(_DUPLICATE_RETRY_SECONDS if is_duplicate else _RETRY_SECONDS)
        if answer.broker_epoch != self._identity.broker_epoch:
            log.info(
                "broker_registered",
                "broker %(broker)d is registered, epoch %(epoch)d",
                broker=node_id,
                epoch=answer.broker_epoch,
            )
        self._identity.broker_epoch = answer.broker_epoch
        self._files.write_running()
        if self._config.flush_each and self._files.previous_epoch >= 0:
            # Nothing has been lost so far, and nothing is written before the image is followed.
            self._files.remember()
        self._metadata.registered(answer.broker_epoch)

    def _registration(self) -> BrokerRegistrationRequest:
        return BrokerRegistrationRequest(
            broker_id=self._identity.node_id,
            cluster_id=self._identity.cluster_id,
            incarnation_id=self._files.incarnation_id,
            listeners=self._listeners(),
            features=tuple(
                Feature(feature.name, feature.min_supported_version, feature.max_supported_version)
                for feature in SUPPORTED_FEATURES
            ),
            rack=self._config.broker_rack or None,
            log_dirs=(self._identity.directory_id,),
            # A process that registers again has lost nothing meanwhile.
            previous_broker_epoch=self._files.known_epoch,
        )

    def _listeners(self) -> tuple[Listener, ...]:
        """The addresses of this broker, by which clients and other brokers are directed."""
        return tuple(
            Listener(listener.name, endpoint.host, endpoint.port, listener.protocol_number)
            for listener, endpoint in self._listening.advertised
        )

    def _why_refused(self, error: ErrorCode) -> str:
        if error is ErrorCode.inconsistent_cluster_id:
            return (
                f"the data in {self._config.directory} is of cluster.id={self._identity.cluster_id}, and the "
                "controllers in controller.quorum.voters are of another cluster (INCONSISTENT_CLUSTER_ID)"
            )
        return f"the cluster has finalized features that node {self._config.node_id} does not support"

    def _what_is_missing(self, error: ErrorCode | None) -> str:
        if error is ErrorCode.duplicate_broker_registration:
            return f"the end of another broker with the same node.id={self._config.node_id}"
        return self._controller.what_is_missing

    # --- heartbeats ----------------------------------------------------------------------------------------------

    async def _beat(self) -> bool:
        """One heartbeat; whether it was answered."""
        metadata, is_disk_broken = self._metadata, self._partitions.is_disk_broken
        if is_disk_broken:
            self._files.disk_is_broken()
        answer = await self._controller.ask(
            BROKER_HEARTBEAT,
            _HEARTBEAT_VERSION,
            BrokerHeartbeatRequest(
                broker_id=self._config.node_id,
                broker_epoch=self._identity.broker_epoch,
                current_metadata_offset=metadata.next_offset - 1 if metadata.is_applied else -1,
                want_shut_down=self._wants_shutdown,
                offline_log_dirs=(self._identity.directory_id,) if is_disk_broken else (),
            ),
        )
        if answer is None:
            return False
        if answer.error_code is ErrorCode.stale_broker_epoch:
            self._set_unfenced(False)
            await self._register()
            return True
        if answer.error_code is not ErrorCode.none:
            if answer.error_code not in _SOON:
                log.warning(
                    "heartbeat_refused", "the controller refuses a heartbeat: %(error)s", error=answer.error_code.name
                )
            return False
        self._answered_at = asyncio.get_running_loop().time()
        self._set_unfenced(not answer.is_fenced)
        if self._wants_shutdown and answer.should_shut_down:
            self._may_shut_down.set()
        return True

    def _set_unfenced(self, is_unfenced: bool) -> None:
        if self.is_unfenced and not is_unfenced and not self._wants_shutdown:
            log.warning("self_fenced", "broker %(broker)d is fenced", broker=self._config.node_id)
        self.is_unfenced = is_unfenced
        if is_unfenced and self._unfenced is not None and not self._unfenced.done():
            self._unfenced.set_result(None)
