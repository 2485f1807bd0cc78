"""Claims about tools/python_source.py: the tests that parse the project's source do not depend on what is collected."""

from __future__ import annotations

import ast
import gc
from pathlib import Path

from tools.python_source import parse

SOURCE = Path(__file__).parent.parent / "src" / "einmal" / "quorum" / "raft.py"


class _Finalized:
    """In a cycle, so that the garbage collector ends it; parses, as the report of a task's lost exception does."""

    parsed = 0

    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        ast.parse("a = b(c)")
        _Finalized.parsed += 1


def test_a_finalizer_that_parses_does_not_disturb_the_parser() -> None:
    thresholds = gc.get_threshold()
    text = SOURCE.read_text()
    gc.set_threshold(50)
    try:
        for _ in range(5):
            gc.collect()
            for _ in range(20):
                _Finalized()
            parse(text)
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert _Finalized.parsed == 100
    assert gc.isenabled()
