"""The broker epoch under which nothing was lost (KIP-966), kept in the data folder for the next process.

``.kafka_cleanshutdown`` has it: written after a clean stop, or at once where every write is flushed; gone while a power
cut may lose something. For a process that was only killed ``.running`` has its epoch and the machine's boot: in the
same boot all that it wrote is still there. Without it, a replica with everything looks like one that a power cut has
emptied. And where a process has died before it had an epoch, the next one registers as the same incarnation.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any, Final
from uuid import UUID

from einmal.broker.config import BrokerConfig
from einmal.broker.control.boot_mark import BootMark
from einmal.broker.identity import Identity
from einmal.event_log import EventLog
from einmal.log.disk import Disk

log = EventLog(__name__)

CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
RUNNING_FILE: Final = ".running"


class EpochFiles:
    """``incarnation_id``: of this process, unless it continues a former one."""

    def __init__(
        self, config: BrokerConfig, identity: Identity, disk: Disk, boot: BootMark, incarnation_id: UUID
    ) -> None:
        self._identity = identity
        self._disk = disk
        self._boot = boot
        self._directory = config.directory
        self._clean_shutdown_path = self._directory / CLEAN_SHUTDOWN_FILE
        self._running_path = self._directory / RUNNING_FILE
        self._flush_each = config.flush_each
        self._remembered_epoch = -1
        """The epoch in the file; -1: unknown, or there is no file."""
        self.incarnation_id = incarnation_id
        self.previous_epoch = -1
        """Under which a former process has lost nothing; -1: there is none."""

    @property
    def known_epoch(self) -> int:
        """The latest under which nothing was lost since; -1: there is none."""
        return max(self._identity.broker_epoch, self.previous_epoch)

    def load(self) -> None:
        """Read how the last process stopped; from now on a crash is one. Before anything is written. Raises OSError."""
        stopped = self._content(self._clean_shutdown_path)
        running = self._content(self._running_path)
        if running is not None and not self._is_of_this_boot(running):
            # After another boot only the clean shutdown file counts, under the same epoch.
            running = running if stopped is not None and stopped["brokerEpoch"] == running["brokerEpoch"] else None
        self.previous_epoch = max(_epoch_of(stopped), _epoch_of(running))
        if running is not None and "incarnationId" in running:
            # It has died before it knew its epoch, and has done nothing under it: this process continues it.
            self.incarnation_id = UUID(running["incarnationId"])
        if stopped is not None and not self._flush_each:
            self._forget()

    def _is_of_this_boot(self, running: dict[str, Any]) -> bool:
        return bool(running.get("bootId")) and running["bootId"] == self._disk.boot_id()

    def _content(self, path: PurePosixPath) -> dict[str, Any] | None:
        """The content of a file that a former process has left; None: nothing that has a broker epoch."""
        if not self._disk.exists(path):
            return None
        with suppress(ValueError):
            content = json.loads(self._disk.read_file(path))
            if isinstance(content, dict) and isinstance(content.get("brokerEpoch"), int):
                return content
        return None

    # --- what a crash may lose -----------------------------------------------------------------------------------

    def settled(self, *, survives_power_cut: bool) -> None:
        """All that is written from now on is flushed at once, or not."""
        try:
            if survives_power_cut:
                self.remember()
            elif self._disk.exists(self._clean_shutdown_path):
                self._forget()
        except OSError as error:
            log.error("clean_shutdown_file_failed", "%(path)s: %(error)s", path=self._clean_shutdown_path, error=error)

    def remember(self) -> None:
        """All that this broker has is on disk. Raises OSError."""
        if self._remembered_epoch != self._identity.broker_epoch:
            text = json.dumps({"version": 0, "brokerEpoch": self._identity.broker_epoch})
            self._disk.write_file(self._clean_shutdown_path, text.encode())
            self._remembered_epoch = self._identity.broker_epoch

    def _forget(self) -> None:
        self._remembered_epoch = -1
        self._disk.remove(self._clean_shutdown_path)
        self._disk.sync_directory(self._directory)

    # --- what a kill may lose ------------------------------------------------------------------------------------

    def write_running(self) -> None:
        """Record that what is written from now on outlives the process, if not the machine's power."""
        content = {"version": 0, "brokerEpoch": self.known_epoch, "bootId": self._disk.boot_id()}
        if self._identity.broker_epoch < 0:
            content["incarnationId"] = str(self.incarnation_id)
        try:
            self._disk.write_file(self._running_path, json.dumps(content).encode())
        except OSError as error:
            # The file has another epoch then, and counts for nothing.
            log.error("epoch_file_failed", "%(path)s: %(error)s", path=self._running_path, error=error)

    def disk_is_broken(self) -> None:
        """Remove the proof that memory outlives the process: what a disk has not taken may be gone from memory, too."""
        with suppress(OSError):
            self._disk.remove(self._running_path)
        self._boot.remove()


def _epoch_of(content: dict[str, Any] | None) -> int:
    return -1 if content is None else int(content["brokerEpoch"])
