"""Claims about the fixtures of the pytest plugin, by a project of its own that uses nothing else."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from einmal.testing import pytest_plugin
from einmal.testing.proxy import ApplicationProxy
from tests.suite.patience import patient
from tests.suite.shared import shared

_REPOSITORY: Final = Path(__file__).parents[2]
_PROJECT: Final = Path(__file__).parent / "user_project"
_PAGE: Final = _REPOSITORY / "docs" / "testing.md"
_ON_ANY_CLUSTER: Final = "not leader and not bit and not paused"


def run_pytest(project: Path, *arguments: str, **variables: str) -> str:
    """The summary of a run in the project with no plugin but those named."""
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(_REPOSITORY / "src"), **variables}
    for name in [each for each in env if each.startswith("PYTEST_XDIST") or each == "PYTEST_ADDOPTS"]:
        del env[name]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "einmal.testing.pytest_plugin", *arguments]
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, timeout=patient(120))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project, which has no conftest.py and no settings."""
    copy = tmp_path / "project"
    shutil.copytree(_PROJECT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "pytest.ini").write_text("[pytest]\n")
    return copy


def test_the_page_shows_the_tests_as_they_are_run() -> None:
    shown = re.findall(r"^```python\n(def test_.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    tests = (_PROJECT / "test_orders.py").read_text()
    assert len(shown) > 4
    assert [each for each in shown if each not in tests] == []


def test_the_faults_of_the_page_exist() -> None:
    (program,) = re.findall(r"^```python\n(kafka_proxy\..*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    with ApplicationProxy("127.0.0.1:1") as proxy:
        exec(program, {"kafka_proxy": proxy})


def test_the_distribution_declares_the_plugin() -> None:
    project = tomllib.loads((_REPOSITORY / "pyproject.toml").read_text())["project"]
    assert importlib.import_module(project["entry-points"]["pytest11"]["einmal"]) is pytest_plugin
    assert not [each for each in project["dependencies"] if each.startswith("pytest")]


@pytest.mark.system
@pytest.mark.interop
def test_the_project_passes_on_brokers_of_its_own(project: Path) -> None:
    assert "7 passed" in run_pytest(project)


@pytest.mark.system
@pytest.mark.interop
@pytest.mark.long
def test_each_process_of_xdist_has_a_broker_of_its_own(project: Path) -> None:
    arguments = ("-p", "xdist", "-n", "2", "-k", _ON_ANY_CLUSTER)
    assert "4 passed" in run_pytest(project, *arguments)


@pytest.mark.interop
def test_the_project_passes_on_apache_kafka_by_a_variable_and_by_an_ini_option(project: Path) -> None:
    bootstrap = shared("apache").bootstrap
    chosen = "lost or fences"
    assert "2 passed" in run_pytest(project, "-k", chosen, KAFKA_BOOTSTRAP_SERVERS=bootstrap)
    (project / "pytest.ini").write_text(f"[pytest]\nkafka_bootstrap_servers = {bootstrap}\n")
    assert "2 passed" in run_pytest(project, "-k", chosen)


def test_a_run_without_the_fixtures_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text("import sys\ndef test_it():\n    assert 'einmal.client' not in sys.modules\n")
    assert "1 passed" in run_pytest(tmp_path)
