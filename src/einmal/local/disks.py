"""Disks of brokers on this machine that are full, or flush slowly.

The data of each broker is on a file system in memory (tmpfs) of its own, which somebody else's file fills. Flushes are
delayed by strace, which holds the system calls of the process up. Everything ends with the process that has made it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from errno import ENOSPC
from pathlib import Path
from typing import Final

_SIZE: Final = 1 << 30
"""Size of a file system. Memory is used for what is written only."""
_PIECES: Final = (1 << 24, 1 << 16, 1 << 12)


class DisksMissing(OSError):
    """This machine gives us none. ``str()`` names what to do."""


class Disks:
    """One for each folder. ``folders``: of the data of the nodes, by their ids. Raises DisksMissing."""

    def __init__(self, folders: Mapping[int, Path]) -> None:
        self._folders = folders
        self._ballast: dict[int, int] = {}
        self._tracers: dict[int, subprocess.Popen[bytes]] = {}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        # A mount outlives the process that has made it, but not this one, which reads its standard input.
        script = (
            f'for folder; do mount -t tmpfs -o size={_SIZE} einmal "$folder" || '
            '{ umount -l "$@" 2>/dev/null; exit 1; }; done; '
            'echo mounted; read _; umount -l "$@"'
        )
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", *map(str, folders.values())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._guard.stdout is not None
        if not self._guard.stdout.readline():
            _, errors = self._guard.communicate()
            raise DisksMissing(
                f"no disks of their own for brokers: {errors.decode(errors='replace').strip().splitlines()[0]}\n"
                "hint: they need Linux and root (CAP_SYS_ADMIN), and slow ones the program strace"
            )

    def fill(self, node_id: int) -> None:
        """Leave no space on a node's disk."""
        ballast = self._ballast[node_id] = os.open(self._folders[node_id], os.O_TMPFILE | os.O_RDWR)
        size = 0
        for piece in _PIECES:
            with suppress(_Full):
                while True:
                    size = _grown(ballast, size, piece)

    def free(self, node_id: int) -> None:
        """Give the space back, if it was taken."""
        if (ballast := self._ballast.pop(node_id, None)) is not None:
            os.close(ballast)

    def slow_down(self, node_id: int, pid: int, delay_s: float) -> None:
        """Let each flush of a node, which is the process ``pid``, take so much longer. Raises DisksMissing."""
        delay = f"inject=fsync,fdatasync:delay_enter={int(delay_s * 1_000_000)}"
        try:
            self._tracers[node_id] = subprocess.Popen(
                ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", delay, "-p", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise DisksMissing(f"no slow disks: strace: {error.strerror}\nhint: install the package strace") from error

    def speed_up(self, node_id: int) -> None:
        """Let a node flush as fast as it can, if it was slowed down."""
        if (tracer := self._tracers.pop(node_id, None)) is not None:
            # The process continues by itself only where the tracer may end.
            tracer.send_signal(signal.SIGINT)
            tracer.wait()

    def close(self) -> None:
        """Remove the disks, once the brokers have ended."""
        for node_id in self._folders:
            self.free(node_id)
            self.speed_up(node_id)
        self._guard.communicate()


class _Full(Exception):
    """There is no space for another piece."""


def _grown(file: int, size: int, piece: int) -> int:
    """Raises _Full."""
    try:
        os.posix_fallocate(file, size, piece)
    except OSError as error:
        if error.errno == ENOSPC:
            raise _Full from None
        raise
    return size + piece
