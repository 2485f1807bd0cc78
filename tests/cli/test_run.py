"""Claims about ``einmal run`` that need no Spark: what a file cannot mean is told before anything starts."""

from __future__ import annotations

from pathlib import Path

from tests.cli.running import Cli


def run(path: Path, *options: str, status: int) -> list[str]:
    return Cli("127.0.0.1:1")("run", str(path), *options, status=status).errors


def test_every_problem_of_a_file_is_told_with_status_2(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text('kafka.bootstrap.servers = "h:1"\n[source.orders]\n[sinks.x]\n')
    told = run(path, status=2)
    assert [line for line in told if line.startswith("error: ")][0] == f"error: {path}: unknown key 'source.orders'"
    assert sum(line.startswith("error: ") for line in told) >= 3


def test_a_file_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    assert "No such file" in run(tmp_path / "none.toml", status=1)[0]


def test_a_whole_program_takes_no_settings_of_a_declaration(tmp_path: Path) -> None:
    path = tmp_path / "whole.py"
    path.write_text("raise SystemExit('it was run')\n")
    assert "a whole program takes no -X" in " ".join(run(path, "--available-now", status=2))
