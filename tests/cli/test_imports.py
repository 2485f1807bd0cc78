"""Claims about what our programs import where more is installed than they need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.suite.patience import patient

pytestmark = pytest.mark.system

_MAIN: Final = "from einmal.cli.app import main\ntry: main()\nexcept SystemExit: pass"
_NOBODY: Final = ["-b", "127.0.0.1:1", "-X", "bootstrap.timeout.ms=50"]
_LARGE: Final = (
    "email",
    "http",
    "importlib.resources",
    "multiprocessing",
    "pyarrow",
    "pyspark",
    "rich",
    "tempfile",
    "urllib.request",
)
"""Packages and modules that take 10 ms and more, and that few processes need."""


def run(program: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As a user does: processes of tests have no hypothesis (tests/started)."""
    paths = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if not each.endswith("started")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        input="",
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=patient(60),
        check=False,
    )


@pytest.mark.parametrize("module", ["einmal.client", "einmal.broker.node", "einmal.wire.fetch", "einmal.cli.app"])
def test_no_program_imports_hypothesis_or_leaves_its_folder(module: str, tmp_path: Path) -> None:
    """kio does, where it is installed: that takes long, and makes a folder in the working directory."""
    done = run(f"import sys, {module}; assert 'hypothesis' not in sys.modules", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_hypothesis_can_be_imported_afterwards(tmp_path: Path) -> None:
    done = run("import einmal.wire.messages, hypothesis.strategies", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("program", "arguments", "needed", "others"),
    [
        ("import einmal.client", [], "einmal.client.records", ("asyncio", "einmal.wire", "logging", "ssl", "typer")),
        (
            "import einmal.cli.app",
            [],
            "typer",
            ("asyncio", "einmal.broker", "einmal.cli.commands.topic", "einmal.client"),
        ),
        (
            _MAIN,
            ["topic", "list", *_NOBODY],
            "einmal.client.blocking.admin",
            ("einmal.client.cores.producer_core", "einmal.cli.commands.verify"),
        ),
        (
            _MAIN,
            ["start", "--port", "0", "--data-dir", "data", "--stop-with-stdin"],
            "einmal.broker.node",
            ("einmal.cli.commands.topic", "einmal.cli.commands.verify", "einmal.client"),
        ),
    ],
    ids=["client", "app", "topic list", "start"],
)
def test_a_program_begins_without_what_only_others_need(
    program: str, arguments: list[str], needed: str, others: tuple[str, ...], tmp_path: Path
) -> None:
    done = run(
        f"import sys\nbefore = {{*sys.modules}}\n{program}\nprint(*sys.modules.keys() - before)", tmp_path, *arguments
    )
    assert done.stdout, done.stderr
    imported = done.stdout.splitlines()[-1].split()
    assert needed in imported, done.stderr
    assert [each for each in imported if any(f"{each}.".startswith(f"{other}.") for other in (*_LARGE, *others))] == []
