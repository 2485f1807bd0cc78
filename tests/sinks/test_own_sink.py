"""Claims about examples/own_sink: it passes the battery that einmal's own sinks pass."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from examples.own_sink.json_lines import JsonLines, writing
from pyspark import cloudpickle

from einmal.options.values import Options
from einmal.testing.sinks import SinkTests
from tests.sinks.local_tasks import WITHOUT_KILLS, LocalTasks

pytestmark = pytest.mark.slow


class JsonLinesHooks(SinkTests):
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


def test_executors_need_not_have_the_module(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    sent.write_bytes(cloudpickle.dumps(writing(str(tmp_path))))  # type: ignore[no-untyped-call]
    program = (
        "import pyarrow; from pyspark import cloudpickle; from einmal.sinks.batch_rows import TaskAttempt\n"
        f"write = cloudpickle.loads(open({str(sent)!r}, 'rb').read())\n"
        "batches = pyarrow.table({'id': [1, 2]}).to_batches()\n"
        "print(write(TaskAttempt(3, 4), iter(batches)).rows)"
    )
    # The folder of the examples is on no path there.
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, (tmp_path / "00003-4.jsonl").exists()) == ("2\n", True), done.stderr


class TestJsonLines(LocalTasks, JsonLinesHooks):
    """The battery."""

    in_the_long_run = WITHOUT_KILLS


def committed_files(directory: Path) -> list[Path]:
    manifest = directory / "manifest.json"
    return [directory / each for each in json.loads(manifest.read_text())["files"]] if manifest.exists() else []
