"""The demo's input: real text, and an independent count of its words.

By default the Debian changelogs of this machine, else Python's own standard library. A word is a run of ASCII letters
and digits, in lower case: a definition that means the same in Python and in Spark, whatever the text.
"""

from __future__ import annotations

import gzip
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

LINES_WANTED: Final = 120_000
LINE_CHARACTERS_MAX: Final = 2_000
WORD_PATTERN: Final = "[A-Za-z0-9]+"
_DEBIAN_CHANGELOGS: Final = Path("/usr/share/doc")


class NoInput(Exception):
    """There is not enough text to count."""


def read_lines(inputs: Sequence[Path]) -> tuple[str, list[str]]:
    """Return what was read, and its lines that are not blank. Raises NoInput or OSError."""
    if inputs:
        lines = list(_lines(_files_below(inputs)))
        if not lines:
            raise NoInput(f"no text in {', '.join(map(str, inputs))}")
        return ", ".join(str(path) for path in inputs), lines
    changelogs = sorted(_DEBIAN_CHANGELOGS.glob("*/changelog*.gz"))
    lines = _first(_lines(changelogs), LINES_WANTED)
    if len(lines) >= LINES_WANTED:
        return "the Debian changelogs of this machine", lines
    library = Path(sysconfig.get_paths()["stdlib"])
    sources = (path for path in sorted(library.rglob("*.py")) if "site-packages" not in path.parts)
    return "Python's own standard library", _first(_lines(sources), LINES_WANTED)


def count_words(lines: Iterable[str]) -> Counter[str]:
    """The independent single pass that the pipeline's output is held against."""
    pattern = re.compile(WORD_PATTERN)
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(word.lower() for word in pattern.findall(line))
    return counts


def _files_below(inputs: Sequence[Path]) -> Iterator[Path]:
    for path in inputs:
        if path.is_dir():
            yield from (item for item in sorted(path.rglob("*")) if item.is_file())
        else:
            yield path


def _lines(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            for raw in stream:
                line = raw.decode(errors="replace").strip()
                if line:
                    yield line[:LINE_CHARACTERS_MAX]


def _first(lines: Iterator[str], count: int) -> list[str]:
    return [line for line, _number in zip(lines, range(count), strict=False)]
