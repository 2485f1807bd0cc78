"""This broker as a member of its cluster: it registers, says that it lives, and takes its leave.

A broker is fenced until its image has its own registration; then its heartbeats unfence it. They have a connection of
their own to the active controller, so that the end of this process is noticed with the end of the connection. Before a
clean stop it asks for its leaders to be moved.

Its data folder keeps the broker epoch under which nothing was lost (KIP-966): written after a clean stop, or at once
where every write is flushed; gone while a power cut may lose something. For a process that was only killed another file
has its epoch and the machine's boot: in the same boot all that it wrote is still there. Otherwise the replica with the
most could not be told from one that a power cut has emptied. And where it has died before it was told its epoch, the
next process registers as the same incarnation.

Knows what is said to the controller, not what it decides.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from einmal.broker.listeners import ConfigError, Endpoint, NamedListener
from einmal.client.aio.connection import Disconnected
from einmal.metadata.features import SUPPORTED_FEATURES
from einmal.types import ErrorCode
from einmal.wire.errors import WireError

if TYPE_CHECKING:
    from einmal.broker.node import Node

log = logging.getLogger(__name__)

CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
RUNNING_FILE: Final = ".running"
_REGISTRATION: Final = 62
_REGISTRATION_VERSION: Final = 4
_HEARTBEAT: Final = 63
_HEARTBEAT_VERSION: Final = 1
_LANE: Final = "heartbeat"
_TIMEOUT_MS: Final = 2_000
_RETRY_SECONDS: Final = 0.05
_DUPLICATE_RETRY_SECONDS: Final = 0.2
_LEADER_WAIT_SECONDS: Final = 1.0
_FIRST_REPORT_SECONDS: Final = 2.0
_REPORT_SECONDS: Final = 10.0
"""When it is said what a start waits for, and how often."""
_APPLIED_SECONDS: Final = 0.5
_SHUTDOWN_SECONDS: Final = 5.0
_SHUTDOWN_UNANSWERED_SECONDS: Final = 1.0
"""Without an answer for so long a stop goes on: perhaps the controllers are stopping too."""
_SHUTDOWN_BEAT_SECONDS: Final = 0.05
_SOON: Final = (ErrorCode.not_controller, ErrorCode.request_timed_out)
"""Another controller will know, or the same one in a moment."""


class BrokerLifecycle:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._incarnation_id = node.new_uuid()
        self._previous_broker_epoch = -1
        self._remembered_epoch = -1
        """What the file says; -1: unknown, or there is none."""
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._unfenced: asyncio.Future[None] | None = None
        self._wants_shutdown = False
        self._may_shut_down = asyncio.Event()
        self.broker_epoch = -1
        self.is_unfenced = False

    # --- life ----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read how the last process stopped; from now on a crash is one. Before anything is written. Raises OSError."""
        stopped = self._told(self._clean_shutdown_path)
        running = self._told(self._running_path)
        if running is not None and not self._is_of_this_boot(running):
            # What counts then is only what is said to be on disk, under the same epoch.
            running = running if stopped is not None and stopped["brokerEpoch"] == running["brokerEpoch"] else None
        self._previous_broker_epoch = max(_epoch_of(stopped), _epoch_of(running))
        if running is not None and "incarnationId" in running:
            # It has died before it knew its epoch, and has done nothing under it: this one goes on in its place.
            self._incarnation_id = UUID(running["incarnationId"])
        if stopped is not None and not self._node.config.flush_each:
            self._forget_epoch()

    def _is_of_this_boot(self, running: dict[str, Any]) -> bool:
        return bool(running.get("bootId")) and running["bootId"] == self._node.disk.boot_id()

    def _told(self, path: PurePosixPath) -> dict[str, Any] | None:
        """What a file says of a former process; None: nothing that has a broker epoch."""
        if not self._node.disk.exists(path):
            return None
        with suppress(ValueError):
            told = json.loads(self._node.disk.read_file(path))
            if isinstance(told, dict) and isinstance(told.get("brokerEpoch"), int):
                return told
        return None

    def start(self) -> None:
        """Begin to register and to say that this broker lives."""
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
        """Wait until this broker takes part. Raises ConfigError when the cluster does not want it, or OSError."""
        assert self._unfenced is not None, "not started"
        await asyncio.shield(self._unfenced)

    async def shut_down(self) -> None:
        """Have what is led here moved to others, as far as there are any; not for longer than a few seconds."""
        others = [
            broker
            for broker in self._node.metadata.image.brokers.values()
            if broker.is_active and broker.broker_id != self._node.config.node_id
        ]
        if not (self.is_unfenced and others and self._node.config.controlled_shutdown_enable):
            return
        self._wants_shutdown = True
        self._wake.set()
        timer = asyncio.get_running_loop().call_later(_SHUTDOWN_SECONDS, self._may_shut_down.set)
        await self._may_shut_down.wait()
        timer.cancel()

    async def stop(self) -> None:
        """Say nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- what a crash may lose -----------------------------------------------------------------------------------

    def stopped_cleanly(self) -> None:
        """All that this broker has is on disk. Raises OSError."""
        if self.broker_epoch >= 0:
            self._remember_epoch()

    def settings_changed(self) -> None:
        """Some topics' settings may be others: from now on a crash may lose something, or nothing."""
        if not self._node.config.flush_each:
            return
        try:
            if all(partition.log.config.flush_each for partition in self._node.partitions):
                self._remember_epoch()
            elif self._node.disk.exists(self._clean_shutdown_path):
                self._forget_epoch()
        except OSError as error:
            log.error("%s: %s", self._clean_shutdown_path, error)

    @property
    def _clean_shutdown_path(self) -> PurePosixPath:
        return self._node.directory / CLEAN_SHUTDOWN_FILE

    @property
    def _running_path(self) -> PurePosixPath:
        return self._node.directory / RUNNING_FILE

    def _remember_boot(self) -> None:
        """What is written from now on outlives the process, if not the machine's power."""
        told = {"version": 0, "brokerEpoch": self._known_epoch, "bootId": self._node.disk.boot_id()}
        if self.broker_epoch < 0:
            told["incarnationId"] = str(self._incarnation_id)
        try:
            self._node.disk.write_file(self._running_path, json.dumps(told).encode())
        except OSError as error:
            # The file has another epoch then, and counts for nothing.
            log.error("%s: %s", self._running_path, error)

    def _forget_boot(self) -> None:
        """What a disk has not taken may be gone from memory, too."""
        with suppress(OSError):
            self._node.disk.remove(self._running_path)
        self._node.forget_boot()

    def _remember_epoch(self) -> None:
        if self._remembered_epoch != self.broker_epoch:
            text = json.dumps({"version": 0, "brokerEpoch": self.broker_epoch})
            self._node.disk.write_file(self._clean_shutdown_path, text.encode())
            self._remembered_epoch = self.broker_epoch

    def _forget_epoch(self) -> None:
        self._remembered_epoch = -1
        self._node.disk.remove(self._clean_shutdown_path)
        self._node.disk.sync_directory(self._node.directory)

    # --- the loop ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        await self._register()
        while not await self._node.metadata.until(lambda: self._node.metadata.is_applied, _APPLIED_SECONDS):
            # Meanwhile the controller may have forgotten it again.
            await self._beat()
        self.settings_changed()
        await self._node.supervisor.run("the broker's heartbeat", self._beat_on)

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
        elif self._wants_shutdown or not (self.is_unfenced or self._node.partitions.is_disk_broken):
            seconds = _SHUTDOWN_BEAT_SECONDS
        else:
            seconds = self._node.config.broker_heartbeat_interval_ms / 1000
        timer = asyncio.get_running_loop().call_later(seconds, self._wake.set)
        await self._wake.wait()
        timer.cancel()

    async def _ask(self, api_key: int, version: int, fields: dict[str, Any]) -> Any | None:
        """The active controller's answer; None: there is none, and no use in asking again at once."""
        leader = await self._node.quorum.leader_known(_LEADER_WAIT_SECONDS)
        if leader is None:
            return None
        try:
            return await self._node.peers.ask(leader, api_key, version, fields, timeout_ms=self._timeout_ms, lane=_LANE)
        except (Disconnected, WireError) as error:
            log.debug("controller %d: %s", leader, error)
            return None

    @property
    def _timeout_ms(self) -> int:
        return min(_TIMEOUT_MS, self._node.config.broker_session_timeout_ms)

    # --- registration --------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        """Until a controller has taken it in. Raises ConfigError when none ever will."""
        loop = asyncio.get_running_loop()
        report_at = loop.time() + _FIRST_REPORT_SECONDS
        self._remember_boot()
        while True:
            answer = await self._ask(_REGISTRATION, _REGISTRATION_VERSION, self._registration())
            error = self._refusal if answer is None else answer.error_code
            if answer is not None and error is ErrorCode.none:
                break
            if error in (ErrorCode.inconsistent_cluster_id, ErrorCode.unsupported_version):
                raise ConfigError(self._why_refused(error))
            if loop.time() >= report_at:
                report_at = loop.time() + _REPORT_SECONDS
                log.warning("node %d waits for %s", self._node.config.node_id, self._what_is_missing(error))
            is_duplicate = error is ErrorCode.duplicate_broker_registration
            await asyncio.sleep(_DUPLICATE_RETRY_SECONDS if is_duplicate else _RETRY_SECONDS)
        if answer.broker_epoch != self.broker_epoch:
            log.info("broker %d is registered, epoch %d", self._node.config.node_id, answer.broker_epoch)
        self.broker_epoch = answer.broker_epoch
        self._remember_boot()
        if self._node.config.flush_each and self._previous_broker_epoch >= 0:
            # Nothing has been lost so far, and nothing is written before the image is followed.
            self._remember_epoch()
        self._node.metadata.look()

    @property
    def _refusal(self) -> ErrorCode | None:
        """Of a broker to which no controller is ready to tell who leads. A voter waits for better ones."""
        quorum = self._node.quorum
        return quorum.refused_with if quorum.leader_id is None and not quorum.is_voter else None

    def _registration(self) -> dict[str, Any]:
        node = self._node
        return {
            "broker_id": node.config.node_id,
            "cluster_id": node.metadata.cluster_id,
            "incarnation_id": self._incarnation_id,
            "listeners": self._listeners(),
            "features": [
                {
                    "name": feature.name,
                    "min_supported_version": feature.min_supported_version,
                    "max_supported_version": feature.max_supported_version,
                }
                for feature in SUPPORTED_FEATURES
            ],
            "rack": node.config.broker_rack or None,
            "log_dirs": [node.directory_id],
            # A process that registers again has lost nothing meanwhile.
            "previous_broker_epoch": self._known_epoch,
        }

    def _listeners(self) -> list[dict[str, Any]]:
        """Where clients find this broker, and then where other brokers do, if that is elsewhere."""
        listeners = self._node.config.named_listeners
        assert listeners.clients is not None, "no broker"
        told = [_listener(listeners.clients, self._node.endpoint)]
        for_brokers = self._node.endpoint_for_brokers
        if listeners.brokers is not None and for_brokers is not None:
            told.append(_listener(listeners.brokers, for_brokers))
        return told

    @property
    def _known_epoch(self) -> int:
        """The latest under which nothing was lost since; -1: there is none."""
        return max(self.broker_epoch, self._previous_broker_epoch)

    def _why_refused(self, error: ErrorCode) -> str:
        node = self._node
        if error is ErrorCode.inconsistent_cluster_id:
            return (
                f"the data in {node.directory} is of cluster.id={node.metadata.cluster_id}, and the controllers in "
                f"controller.quorum.voters are of another cluster (INCONSISTENT_CLUSTER_ID)"
            )
        return f"the cluster has finalized features that node {node.config.node_id} does not support"

    def _what_is_missing(self, error: ErrorCode | None) -> str:
        if error is ErrorCode.duplicate_broker_registration:
            return f"the end of another broker with the same node.id={self._node.config.node_id}"
        if self._node.quorum.leader_id is None:
            voters = self._node.config.controller_quorum_voters
            return f"an active controller: a majority of controller.quorum.voters={voters} must be up"
        return f"controller {self._node.quorum.leader_id} to register it"

    # --- heartbeats ----------------------------------------------------------------------------------------------

    async def _beat(self) -> bool:
        """One heartbeat; whether it was answered."""
        metadata, is_disk_broken = self._node.metadata, self._node.partitions.is_disk_broken
        if is_disk_broken:
            self._forget_boot()
        answer = await self._ask(
            _HEARTBEAT,
            _HEARTBEAT_VERSION,
            {
                "broker_id": self._node.config.node_id,
                "broker_epoch": self.broker_epoch,
                "current_metadata_offset": metadata.next_offset - 1 if metadata.is_applied else -1,
                "want_fence": False,
                "want_shut_down": self._wants_shutdown,
                "offline_log_dirs": [self._node.directory_id] if is_disk_broken else (),
            },
        )
        if answer is None:
            return False
        if answer.error_code is ErrorCode.stale_broker_epoch:
            self._set_unfenced(False)
            await self._register()
            return True
        if answer.error_code is not ErrorCode.none:
            if answer.error_code not in _SOON:
                log.warning("the controller refuses a heartbeat: %s", answer.error_code.name)
            return False
        self._set_unfenced(not answer.is_fenced)
        if self._wants_shutdown and answer.should_shut_down:
            self._may_shut_down.set()
        return True

    def _set_unfenced(self, is_unfenced: bool) -> None:
        if self.is_unfenced and not is_unfenced and not self._wants_shutdown:
            log.warning("broker %d is fenced", self._node.config.node_id)
        self.is_unfenced = is_unfenced
        if is_unfenced and self._unfenced is not None and not self._unfenced.done():
            self._unfenced.set_result(None)


def _epoch_of(told: dict[str, Any] | None) -> int:
    return -1 if told is None else int(told["brokerEpoch"])


def _listener(listener: NamedListener, endpoint: Endpoint) -> dict[str, Any]:
    return {
        "name": listener.name,
        "host": endpoint.host,
        "port": endpoint.port,
        "security_protocol": listener.protocol_number,
    }
