"""Claims about the demo's input."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from einmal.demo.text import NoInput, count_words, read_lines


def test_words_are_runs_of_ascii_letters_and_digits() -> None:
    assert count_words(["Fix: the Fix-it, größe 12."]) == Counter(
        {"fix": 2, "the": 1, "it": 1, "gr": 1, "e": 1, "12": 1}
    )


def test_files_folders_and_gzip_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n two \n")
    with gzip.open(tmp_path / "b.gz", "wt") as stream:
        stream.write("three\n")
    _source, lines = read_lines([tmp_path])
    assert lines == ["one", "two", "three"]


def test_an_empty_input_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoInput):
        read_lines([tmp_path])


def test_there_is_always_enough_text_here() -> None:
    _source, lines = read_lines([])
    assert len(lines) >= 100_000
