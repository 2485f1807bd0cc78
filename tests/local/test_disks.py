"""Claims about disks that are full or slow, with real ones: they need root on Linux."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from einmal.local.disks import Disks, DisksMissing

pytestmark = pytest.mark.system

_FLUSH: Final = """
import os, sys, time
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
for _ in sys.stdin:
    began = time.monotonic()
    os.fsync(file)
    print(time.monotonic() - began, flush=True)
"""


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    try:
        made = Disks({number: tmp_path / f"disk {number}" for number in (1, 2)})
    except DisksMissing as error:
        pytest.skip(str(error))
    yield made
    made.close()


def test_a_full_disk_has_no_space_until_it_is_freed(disks: Disks, tmp_path: Path) -> None:
    full, other = tmp_path / "disk 1" / "log", tmp_path / "disk 2" / "log"
    full.write_bytes(b"before")
    disks.fill(1)
    other.write_bytes(bytes(1 << 20))
    with pytest.raises(OSError) as refused:
        full.with_name("more").write_bytes(bytes(1 << 20))
    assert refused.value.errno == errno.ENOSPC and full.read_bytes() == b"before"
    assert {path.name for path in full.parent.iterdir()} == {"log", "more"}
    disks.free(1)
    full.write_bytes(bytes(1 << 20))
    disks.free(1)


def test_nothing_is_left_of_them(disks: Disks, tmp_path: Path) -> None:
    assert str(tmp_path) in Path("/proc/self/mounts").read_text().replace("\\040", " ")
    disks.fill(1)
    disks.close()
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text().replace("\\040", " ")


@pytest.mark.skipif(shutil.which("strace") is None, reason="a slow disk needs strace")
def test_flushes_of_one_process_are_slow_until_they_are_sped_up(disks: Disks, tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-c", _FLUSH, str(tmp_path / "flushed")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:

        def flush() -> float:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        flush()
        disks.slow_down(1, process.pid, 0.4)
        # strace attaches to a process while that runs.
        assert any(flush() >= 0.4 for _ in range(10_000))
        disks.speed_up(1)
        flush()
        assert process.poll() is None
        process.kill()
