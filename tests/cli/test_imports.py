"""Claims about what our programs import where more is installed than they need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suite.patience import patient

pytestmark = pytest.mark.system


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As a user does: processes of tests have no hypothesis (tests/started)."""
    paths = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if not each.endswith("started")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, timeout=patient(60), check=False
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
