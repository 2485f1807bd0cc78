"""Claims about docs/client.md: its examples run as they stand, and print the shown output."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Final

import pytest

from tests.examples.readme import ROOT
from tests.interop.conftest import NodeFactory, node_of

__all__ = ["node_of"]

PAGE: Final = ROOT / "docs" / "client.md"
_EXAMPLE: Final = re.compile(r"^## (.*?)$|^```python\n(.*?)^```\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ADDRESS: Final = "localhost:9092"


def examples() -> list[tuple[str, str, str]]:
    """(heading, code, what it prints)."""
    found, heading = [], ""
    for title, code, printed in _EXAMPLE.findall(PAGE.read_text()):
        heading = title or heading
        if code:
            found.append((heading, code, printed))
    return found


def test_every_example_of_the_page_has_its_output() -> None:
    assert len(examples()) == PAGE.read_text().count("```python\n") >= 7
    assert {"Consumer", "Admin", "asyncio", "Offsets in transactions"} <= {heading for heading, *_ in examples()}


@pytest.mark.system
def test_the_examples_print_the_output_of_the_page(node_of: NodeFactory) -> None:
    bootstrap = node_of("einmal", 2).bootstrap
    for heading, code, printed in examples():
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code.replace(_ADDRESS, bootstrap), f"{PAGE.name}: {heading}", "exec"), {"__name__": "example"})
        assert output.getvalue() == printed, heading
