"""Claims about files with a declaration: what is wrong with one is wrong usage, and stderr has every problem."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import invoke

COMMANDS = {
    "ingest": ["ingest", "logs", "--file"],
    "mirror": ["mirror", "A->B", "--file"],
    "graph": ["explain", "--graph", "chain.svg"],
}
WRONG = 'clusters = ["A"\n'


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("content", "problem"), [(None, "cannot be read"), (b"\xff", "it is not UTF-8"), (WRONG.encode(), "TOML")]
)
def test_a_declaration_that_cannot_be_meant_is_wrong_usage(
    tmp_path: Path, command: str, content: bytes | None, problem: str
) -> None:
    file = tmp_path / "declared.toml"
    if content is not None:
        file.write_bytes(content)
    result = invoke([*COMMANDS[command], str(file)], terminal_width=500)
    assert result.exit_code == 2, result.output
    assert problem in " ".join(result.stderr.replace("│", " ").split())
    assert content == WRONG.encode() or "hint: pass the path of a declaration" in result.stderr
    assert result.stdout == ""
