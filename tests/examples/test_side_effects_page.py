"""Claims about docs/side-effects.md: its worked example runs as it stands, and prints the shown output."""

from __future__ import annotations

import contextlib
import io
import re

import pytest

from tests.examples.readme import ROOT
from tests.interop.conftest import NodeFactory, node_of

__all__ = ["node_of"]

PAGE = ROOT / "docs" / "side-effects.md"


@pytest.mark.system
def test_six_requests_with_three_keys_are_three_payments(node_of: NodeFactory) -> None:
    page = PAGE.read_text()
    code = "".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    (printed,) = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        bootstrap = node_of("einmal", 2).bootstrap
        exec(compile(code.replace("localhost:9092", bootstrap), PAGE.name, "exec"), {"__name__": "example"})
    assert output.getvalue() == printed
