"""Claims about ``einmal demo`` before it starts anything."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from einmal.cli.commands import demo as command
from einmal.demo.run import Demo
from einmal.spark.environment import java
from tests.cli.running import Cli

CLI = Cli("127.0.0.1:1")


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Demo) -> None:
        raise AssertionError("the demo was started")

    monkeypatch.setattr(Demo, "run", run)


def test_without_spark_the_demo_reports_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = importlib.util.find_spec

    def find_spec(name: str) -> ModuleType | None:
        return None if name == "pyspark" else found(name)  # type: ignore[return-value]

    monkeypatch.setattr(command, "find_spec", find_spec)
    failed = CLI("demo", "--output", str(tmp_path / "out"), status=2)
    assert failed.errors == [
        "error: the demo needs Spark: pyspark cannot be found",
        "hint: pip install '.[spark]' in a clone of einmal",
    ]
    assert not (tmp_path / "out").exists()


def test_without_java_the_demo_reports_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(java, "_candidates", list)
    failed = CLI("demo", "--output", str(tmp_path / "out"), status=2)
    assert failed.errors[0].startswith("error: Java 17 or newer is needed; found: none")
    assert failed.errors[1].startswith("hint: pip install '.[spark]'")


def test_input_that_is_not_there_is_named(tmp_path: Path) -> None:
    failed = CLI("demo", "--input", str(tmp_path / "nothing"), "--output", str(tmp_path / "out"), status=2)
    assert "nothing" in failed.errors[0] and failed.errors[0].startswith("error:")
