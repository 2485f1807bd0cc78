"""Wall clocks of processes on this machine that jump: through libfaketime, which answers for the system's clock.

The clock that only advances (CLOCK_MONOTONIC), by which programs wait, is left alone, as by whoever sets
the time.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from einmal.extras import install_command

_LIBRARY: Final = "vendor/libfaketime/src/libfaketime.so.1"
_LOOK_S: Final = 1
"""How late a process may notice that its clock jumps."""


class ClocksMissing(OSError):
    """There is no libfaketime. ``str()`` names what to do."""


class Clocks:
    """One for each of the nodes 1 to ``count``, right at first. ``folder``: of their files. Raises ClocksMissing."""

    def __init__(self, folder: Path, count: int) -> None:
        if sys.platform != "linux":
            raise ClocksMissing("no clock can be set: that needs Linux")
        spec = find_spec("libfaketime")
        packages = [] if spec is None else spec.submodule_search_locations or []
        libraries = [library for package in packages if (library := Path(package, _LIBRARY)).exists()]
        if not libraries:
            raise ClocksMissing(f"no clock can be set: libfaketime is not installed\nhint: {install_command('chaos')}")
        self._library = libraries[0]
        self._files = {node_id: folder / f"clock-{node_id}" for node_id in range(1, count + 1)}
        for node_id in self._files:
            self.set(node_id, 0.0)

    def command(self, node_id: int) -> list[str]:
        """Return what comes before a command that has the clock of a node, as the same process."""
        return [
            "env",
            f"LD_PRELOAD={self._library}",
            f"FAKETIME_TIMESTAMP_FILE={self._files[node_id]}",
            f"FAKETIME_CACHE_DURATION={_LOOK_S}",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            # Or waits until a monotonic time end at once: a JVM, which waits so everywhere, is never idle.
            "FAKETIME_FORCE_MONOTONIC_FIX=0",
        ]

    def set(self, node_id: int, ahead_s: float) -> None:
        """Set the clock of a node so many seconds ahead of the right time; negative: behind it."""
        file = self._files[node_id]
        written = file.with_suffix(".new")
        written.write_text(f"{ahead_s:+.3f}\n", encoding="ascii")
        # Whoever reads it never reads half of it.
        written.replace(file)
