"""Claims about examples/own_target: it passes the battery that einmal's own targets pass."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from examples.own_target.json_lines import JsonLines

from einmal.options.values import Options
from einmal.testing.targets import TargetTests
from tests.spark.targets.local_tasks import LocalTasks

pytestmark = pytest.mark.slow


class JsonLinesHooks(TargetTests):
    wrong_column = None

    def sink(self, location: Path) -> JsonLines:
        return JsonLines(Options({"path": location / "words"}))

    def rows(self, location: Path) -> list[tuple[int, str]]:
        return [
            (row["id"], row["name"])
            for path in committed_files(location / "words")
            for row in map(json.loads, path.read_text().splitlines())
        ]

    def staged(self, location: Path) -> list[str]:
        """Files that no manifest names, and empty directories."""
        named = committed_files(location / "words")
        kept = {path.parent for path in named}
        return sorted(map(str, set((location / "words").glob("words-*/**/*")) - set(named) - kept))

    def lose_staged(self, location: Path) -> None:
        Path(self.staged(location)[-1]).unlink()

    def copy_staged(self, location: Path) -> None:
        for path in map(Path, self.staged(location)):
            if path.is_file():
                shutil.copyfile(path, path.with_name(f"{path.stem}0.jsonl"))

    def damage_record(self, location: Path, name: str) -> None:
        path = location / "words" / "manifest.json"
        manifest = json.loads(path.read_text())
        manifest["pipelines"][name]["record"] = "{"
        path.write_text(json.dumps(manifest))


class TestJsonLines(LocalTasks, JsonLinesHooks):
    """The battery."""


def committed_files(directory: Path) -> list[Path]:
    manifest = directory / "manifest.json"
    return [directory / each for each in json.loads(manifest.read_text())["files"]] if manifest.exists() else []
