"""``.boot``: in which boot of the machine the data was written. After another one, what was not flushed may be gone."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from einmal.broker.config import BrokerConfig
from einmal.event_log import EventLog
from einmal.log.disk import Disk

log = EventLog(__name__)

FILE_NAME: Final = ".boot"


class BootMark:
    def __init__(self, config: BrokerConfig, disk: Disk) -> None:
        self._path = config.directory / FILE_NAME
        self._disk = disk

    def is_of_this_boot(self) -> bool:
        """Whether the machine has not been started anew since data was last written here. Raises OSError."""
        known = self._disk.read_file(self._path) if self._disk.exists(self._path) else b""
        return bool(known) and known == self._disk.boot_id().encode()

    def write(self) -> None:
        """Every log has been recovered: from now on only the end of the machine's boot tears anything."""
        try:
            self._disk.write_file(self._path, self._disk.boot_id().encode())
        except OSError as error:
            # The next start may take damage for a torn tail, no more.
            log.warning("boot_mark_unwritten", "%(path)s: %(error)s", path=self._path, error=error)

    def remove(self) -> None:
        """The disk has refused writes: what this process wrote may be lost although the machine has kept its power."""
        with suppress(OSError):
            self._disk.remove(self._path)
