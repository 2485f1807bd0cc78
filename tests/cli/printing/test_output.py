"""Claims about what reaches a terminal: foreign names fill a cell of a table, and do nothing else."""

from __future__ import annotations

import io
import json
import unicodedata
from pathlib import Path

import pytest

from einmal.cli.clients import print_error
from einmal.cli.printing.formats import Format
from einmal.cli.printing.output import TerminalText, print_rows, printable, undisguised
from einmal.client.errors import UnknownTopic
from einmal.types import ErrorCode

HOSTILE = [character for character in map(chr, range(0x10000)) if unicodedata.category(character) in ("Cc", "Zl", "Zp")]
"""No other plane has any."""
HOSTILE += list("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c")


def test_no_character_of_a_name_commands_a_terminal_or_breaks_a_line() -> None:
    for each in HOSTILE:
        cleaned = printable(f"a{each}b")
        assert cleaned.isprintable() and cleaned.startswith("a\\") and cleaned.endswith("b"), repr(each)
    for harmless in ("name", "gr\u00f6\u00dfe", "\u4e2d\u6587", "a b", "\\x1b", "\U0001f600"):
        assert printable(harmless) == harmless


def test_a_table_and_an_error_have_as_many_lines_as_without_hostile_names(capsys: pytest.CaptureFixture[str]) -> None:
    name = "".join(HOSTILE)
    print_rows([{"group": name, "members": [name]}], ("group", "members"), Format.TEXT)
    assert len(capsys.readouterr().out.splitlines()) == 2
    print_error(UnknownTopic(ErrorCode.unknown_topic_or_partition, f"topic {name}"))
    assert [line[:6] for line in capsys.readouterr().err.splitlines()] == ["error:", "hint: "]
    print_rows([{"group": name}], ("group",), Format.JSON)
    assert json.loads(capsys.readouterr().out) == [{"group": name}]


def test_a_standard_stream_escapes_text_of_whatever_origin_and_passes_bytes(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("w", encoding="ascii") as original:
        stream = TerminalText(original)
        print("\x1b[2J", "\u009b1m", "\u00fc", "\udcff", "tab\tline", file=stream, flush=True)
        stream.buffer.write(b"\x1b[2J\xff")
        assert undisguised(stream) is original
        assert undisguised(io.StringIO()) is not stream
        stream.flush()
    assert path.read_bytes() == b"\\x1b[2J \\u009b1m \\xfc \\udcff tab\tline\n\x1b[2J\xff"
