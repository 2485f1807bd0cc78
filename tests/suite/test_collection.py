"""Claims about which worker imports which test files."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

CONFTEST = """
import os
from pathlib import Path

import pytest
from tests.suite.collection import SharedCollection

FOLDER = Path(__file__).parent

def note(kind, file):
    with (FOLDER / "log").open("a") as log:
        log.write(f"{kind} {os.environ['PYTEST_XDIST_WORKER']} {Path(file).name}\\n")

def pytest_configure(config):
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(SharedCollection(FOLDER))

@pytest.fixture(scope="session")
def once():
    return []
"""
TEXT = """
import pytest
from conftest import note

note("imported", __file__)

@pytest.fixture(scope="module", params=[1, 2])
def of_the_file(request):
    note("begun", __file__)
    yield request.param
    note("ended", __file__)

def test_function(of_the_file, once, tmp_path):
    once.append(__file__)
    assert once.count(__file__) <= 2
    note("ran", __file__)

class TestClass:
    @pytest.mark.parametrize("x", ["a::b", "[c]"])
    def test_method(self, x):
        note("ran", __file__)

@pytest.mark.long
def test_deselected():
    raise AssertionError
"""
FILES = [f"test_{number}.py" for number in range(6)]


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "pytest.ini").write_text("[pytest]\nmarkers = long\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "2", "--dist", "loadfile", *arguments, "."],
        cwd=directory,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_worker_imports_the_files_whose_tests_it_runs_and_one_worker_all(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).write_text(TEXT)
    done = run(tmp_path, "-m", "not long")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{4 * len(FILES)} passed" in done.stdout
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in (tmp_path / "log").read_text().splitlines():
        kind, worker, name = line.split()
        found[kind][worker].append(name)
    (others,) = (files for files in found["imported"].values() if sorted(files) != FILES)
    (other,) = (worker for worker, files in found["imported"].items() if files is others)
    assert sorted(others) == sorted({*found["ran"][other]})
    # A fixture of a file begins once for each parameter, and ends.
    for kind in ("begun", "ended"):
        assert sorted(itertools.chain.from_iterable(found[kind].values())) == sorted(FILES * 2)


def test_a_file_that_cannot_be_imported_is_reported(tmp_path: Path) -> None:
    (tmp_path / "test_0.py").write_text(TEXT)
    (tmp_path / "test_1.py").write_text("raise RuntimeError('no file')")
    done = run(tmp_path, "-m", "not long")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "RuntimeError: no file" in done.stdout and "4 passed" in done.stdout
