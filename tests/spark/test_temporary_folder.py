"""Claims about what sessions leave in the directory for temporary files."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from einmal.spark.environment.temporary_folder import temporary_folder

_DRIVER = """
import sys
from einmal.spark.environment.temporary_folder import temporary_folder
print(temporary_folder(), flush=True)
sys.stdin.read()
"""
_KILLED = """
import os, signal
from einmal.spark import session
spark = session(master="local[1]", quick=True)
assert spark.range(10).repartition(3).count() == 10
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def driver() -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", _DRIVER], stdin=-1, stdout=-1, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def ended(process: subprocess.Popen[str]) -> None:
    process.communicate()


def test_a_driver_that_ends_removes_its_folder(temporary: Path) -> None:
    process, folder = driver()
    assert folder.parent == temporary and folder.is_dir()
    ended(process)
    assert not [*temporary.iterdir()]


def test_the_folder_of_a_killed_driver_is_removed_by_the_next_and_that_of_a_running_one_is_not(temporary: Path) -> None:
    killed, abandoned = driver()
    running, in_use = driver()
    killed.kill()
    killed.wait()
    assert abandoned.is_dir()
    mine = temporary_folder.__wrapped__()
    assert {*temporary.iterdir()} == {mine, in_use}
    ended(running)
    assert not in_use.exists() and mine.is_dir()


def test_the_folder_of_a_driver_of_another_machine_stays(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed, abandoned = driver()
    killed.kill()
    killed.wait()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("socket.gethostname", lambda: "another")
        temporary_folder.__wrapped__()
    assert abandoned.is_dir()
    temporary_folder.__wrapped__()
    assert not abandoned.exists()


def test_a_file_system_without_locks_leaves_folders_and_starts(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuses)
    first, second = (temporary_folder.__wrapped__() for _ in range(2))
    assert first.is_dir() and second.is_dir()


def test_what_is_not_a_folder_of_a_session_stays(temporary: Path) -> None:
    (temporary / "einmal-spark-without-lock").mkdir()
    (temporary / "einmal-spark-file").write_text("")
    other = temporary / "other"
    other.mkdir()
    (other / "driver.lock").touch()
    (temporary / "einmal-spark-link").symlink_to(other)
    before = {*temporary.iterdir()}
    assert {*temporary.iterdir()} - {temporary_folder.__wrapped__()} == before
    assert (other / "driver.lock").exists()


@pytest.mark.spark
@pytest.mark.long
def test_all_that_a_killed_session_leaves_is_in_its_folder(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spaced = temporary / "with a blank"
    spaced.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spaced))
    done = subprocess.run([sys.executable, "-c", _KILLED], env=os.environ | {"TMPDIR": str(spaced)}, timeout=300)
    assert done.returncode == -signal.SIGKILL
    (folder,) = spaced.iterdir()
    assert [*folder.glob("spark-*")]
    temporary_folder.__wrapped__()
    assert not folder.exists()
