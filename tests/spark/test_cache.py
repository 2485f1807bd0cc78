"""Where programs are kept that a session runs: nowhere that another user of the machine could have written."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from einmal.spark.environment import cache
from einmal.spark.environment.temporary_folder import temporary_folder

STRANGER = 4321
"""A user id that nobody here runs under."""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty temporary directory, in which all programs of a process without a home directory are."""
    place = tmp_path / "temporary"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    # No directory can be made there.
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    temporary_folder.cache_clear()
    assert cache.cache_directory().is_relative_to(place)
    return place


def test_the_directory_of_this_user_is_kept_from_one_start_to_the_next(temporary: Path) -> None:
    first = cache.cache_directory()
    assert first.parent == temporary
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert cache.cache_directory() == first


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("kind", ["directory", "link"])
def test_a_directory_that_another_user_has_made_is_left_alone(temporary: Path, kind: str) -> None:
    predicted = cache.cache_directory()
    predicted.rmdir()
    if kind == "link":
        (temporary / "theirs").mkdir()
        os.chown(temporary / "theirs", STRANGER, STRANGER)
        predicted.symlink_to(temporary / "theirs")
    else:
        predicted.mkdir(mode=0o777)
        predicted.chmod(0o777)
        os.chown(predicted, STRANGER, STRANGER)
    script = cache.kept("run-{}", "text", mode=0o755)
    assert not script.resolve().is_relative_to(predicted.resolve())
    assert script.read_text() == "text"
    assert stat.S_IMODE(script.parent.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_file_that_another_user_could_have_written_is_made_again_or_elsewhere(temporary: Path, what: str) -> None:
    script = cache.kept("bin/run-{}", "text", mode=0o755)
    script.write_text("theirs")
    os.chown(script if what == "file" else script.parent, STRANGER, STRANGER)
    if what == "file":
        assert cache.kept("bin/run-{}", "text", mode=0o755).read_text() == "text"
        assert script.stat().st_uid == os.geteuid()
    else:
        assert not cache.is_private(script)


def test_a_directory_that_others_may_write_becomes_private_and_its_files_are_compared(temporary: Path) -> None:
    script = cache.kept("run-{}", "text", mode=0o755)
    script.parent.chmod(0o777)
    script.write_text("theirs")
    again = cache.kept("run-{}", "text", mode=0o755)
    assert again == script
    assert again.read_text() == "text"
    assert stat.S_IMODE(again.parent.stat().st_mode) == 0o700


def test_nothing_is_private_below_a_directory_that_everybody_may_change(temporary: Path) -> None:
    script = cache.kept("run-{}", "text")
    assert cache.is_private(script)
    temporary.chmod(0o777)
    assert not cache.is_private(script)
    assert not cache.is_private(temporary / "missing")
