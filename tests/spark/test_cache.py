"""Claims about the cache: nothing that another user can write is run, wherever the cache is."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import platformdirs
import pytest

from einmal.spark.environment import cache
from einmal.spark.environment.cache import cache_directory, is_private, kept


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of the user's and a temporary directory, both of this test alone."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    cache._of_this_process.cache_clear()


def _without_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory with a known name, which anybody can make first."""
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *_, **__: Path("relative"))
    return tmp_path / "temporary" / f"einmal-{os.geteuid()}"


def _plant(directory: Path) -> None:
    """The programs of this release, under their names, with another content."""
    for name in ("python-{}", "java-{}/bin/java"):
        program = kept(name, "#!/bin/sh\n", mode=0o755)
        planted = directory / program.relative_to(cache_directory())
        planted.parent.mkdir(parents=True, exist_ok=True)
        planted.write_text("#!/bin/sh\necho planted\n")
        planted.chmod(0o755)


def test_new_cache_is_private(tmp_path: Path) -> None:
    assert cache_directory() == tmp_path / "cache" / "einmal"
    assert stat.S_IMODE(cache_directory().stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
@pytest.mark.parametrize("has_home", [True, False])
def test_directory_that_others_may_write_in_is_left_alone(
    mode: int, has_home: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = tmp_path / "cache" / "einmal" if has_home else _without_a_home(monkeypatch, tmp_path)
    known.mkdir(parents=True)
    _plant(known)
    known.chmod(mode)
    program = kept("python-{}", "#!/bin/sh\n", mode=0o755)
    assert not program.is_relative_to(known)
    assert program.read_text() == "#!/bin/sh\n"
    assert is_private(program.parent)


@pytest.mark.parametrize("has_home", [True, False])
def test_directory_of_another_user_is_left_alone(
    has_home: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = tmp_path / "cache" / "einmal" if has_home else _without_a_home(monkeypatch, tmp_path)
    known.mkdir(parents=True, mode=0o700)
    _plant(known)
    real, owner = Path.lstat, os.geteuid()

    def lstat(path: Path) -> os.stat_result:
        status = real(path)
        foreign = path == known or known in path.parents
        return os.stat_result([*status[:4], owner + 1 if foreign else status.st_uid, *status[5:10]])

    monkeypatch.setattr(Path, "lstat", lstat)
    assert not kept("java-{}/bin/java", "#!/bin/sh\n").is_relative_to(known)
    assert not kept("python-{}", "#!/bin/sh\n").is_relative_to(known)


def test_symbolic_link_to_another_directory_is_not_followed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = _without_a_home(monkeypatch, tmp_path)
    (tmp_path / "theirs").mkdir()
    known.symlink_to(tmp_path / "theirs")
    kept("python-{}", "#!/bin/sh\n")
    assert list((tmp_path / "theirs").iterdir()) == []


def test_program_with_another_content_is_written_again(tmp_path: Path) -> None:
    program = kept("java-{}/bin/java", "#!/bin/sh\n", mode=0o755)
    program.write_text("#!/bin/sh\necho planted\n")
    assert kept("java-{}/bin/java", "#!/bin/sh\n", mode=0o755).read_text() == "#!/bin/sh\n"


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_no_umask_lets_others_write(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        program = kept("java-{}/bin/java", "#!/bin/sh\n", mode=0o755)
    finally:
        os.umask(before)
    inside = [program, *[each for each in program.parents if each.is_relative_to(tmp_path / "cache" / "einmal")]]
    assert len(inside) == 4 and all(is_private(each) for each in inside)


def test_program_that_is_in_order_is_not_written_again() -> None:
    first = kept("python-{}", "#!/bin/sh\n").stat()
    assert kept("python-{}", "#!/bin/sh\n").stat().st_ino == first.st_ino
