"""Compiled modules run only while their sources are as they were: an edit counts at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tools.compile_modules import sources_of

from einmal.compiled import FOLDER, PURE, ROOT, SOURCES, SUFFIX, stamp_of

_FIND = "import sys, importlib.util as util; sys.stdout.write(util.find_spec('einmal.wire.record_scan').origin)"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with the list of sources, and modules under the names of compiled ones, which are none."""
    folder = tmp_path / FOLDER.relative_to(ROOT)
    folder.mkdir(parents=True)
    sources = sources_of(("einmal.wire.record_scan",))
    for source in (*sources, "src/einmal/__init__.py", "src/einmal/compiled.py", "src/einmal/wire/__init__.py"):
        (tmp_path / source).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / source, tmp_path / source)
    (tmp_path / "pyproject.toml").touch()
    (folder / SOURCES).write_text("\n".join(map(stamp_of, sources)))
    (folder / f"einmal.wire.record_scan{SUFFIX}").touch()
    return tmp_path


def origin(tree: Path, **environment: str) -> str:
    """Where a process finds a module that can be compiled."""
    variables = {name: value for name, value in os.environ.items() if name != PURE}
    done = subprocess.run(
        [sys.executable, "-c", _FIND],
        env={**variables, "PYTHONPATH": str(tree / "src"), **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    return done.stdout


def test_a_source_tree_uses_its_compiled_modules(tree: Path) -> None:
    assert origin(tree).endswith(SUFFIX)


def test_an_edit_of_a_compiled_module_counts_at_once(tree: Path) -> None:
    source = tree / "src" / "einmal" / "wire" / "record_scan.py"
    source.write_text(source.read_text() + "\n")
    assert origin(tree) == str(source)


def test_an_edit_of_what_a_compiled_module_imports_counts_at_once(tree: Path) -> None:
    errors = tree / "src" / "einmal" / "wire" / "errors.py"
    errors.write_text(errors.read_text() + "\n")
    assert origin(tree).endswith(".py")


def test_a_source_that_is_gone_leaves_the_others_interpreted(tree: Path) -> None:
    sources = tree / FOLDER.relative_to(ROOT) / SOURCES
    sources.write_text(f"{sources.read_text()}\n0 0 src/einmal/wire/gone.py")
    assert origin(tree).endswith(".py")


@pytest.mark.parametrize("content", ["", "0 0", "\n"])
def test_a_list_that_is_cut_off_leaves_all_interpreted(tree: Path, content: str) -> None:
    (tree / FOLDER.relative_to(ROOT) / SOURCES).write_text(content)
    assert origin(tree).endswith(".py")


def test_a_file_in_place_of_the_folder_leaves_all_interpreted(tree: Path) -> None:
    shutil.rmtree(tree / "build")
    (tree / "build").write_text("")
    assert origin(tree).endswith(".py")


def test_an_installation_takes_nothing_from_a_folder_above_it(tree: Path) -> None:
    (tree / "pyproject.toml").unlink()
    assert origin(tree).endswith(".py")


def test_the_environment_can_ask_for_the_sources(tree: Path) -> None:
    assert origin(tree, **{PURE: "1"}).endswith(".py")
    assert origin(tree, **{PURE: "0"}).endswith(SUFFIX)


def test_the_constants_of_imported_modules_are_among_the_sources() -> None:
    assert {"src/einmal/wire/record_scan.py", "src/einmal/wire/errors.py"} <= sources_of(("einmal.wire.record_scan",))
