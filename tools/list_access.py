"""List the access that each API asks for in docs/access.md, from the docstrings of its handlers.

Usage: python -m tools.list_access [--check]
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.generated_page import write_or_check
from tools.python_source import parse

ROOT = Path(__file__).parent.parent
HANDLERS = ROOT / "src" / "einmal" / "broker" / "front" / "handlers"
PAGE = ROOT / "docs" / "access.md"
HEAD = """# Access to APIs

With an authorizer, a broker asks for an operation on a resource before it reveals or changes anything, as Apache Kafka
does: [Security](security.md) describes how ACLs allow operations. *Cluster* is the one resource of that type,
`kafka-cluster`; a topic, group or transactional id is the one that the request names. A denial does not depend on
whether the resource exists.

Requests of brokers and controllers are refused to every other sender, whatever its ACLs, on listeners where nodes
authenticate by the cluster's secret. Generated from `src/einmal/broker/front/handlers/` by `tools/list_access.py`; a
test checks that the page is up to date, and `pytest tests/interop/test_acl_matrix.py` compares the answers with Apache
Kafka's, for thousands of cases, whose number it prints.

| API | key | access |
|---|---|---|
"""
_LINES = re.compile(r"^API: (?P<key>\d+)\..*?^Access: (?P<access>.*?)^\w[\w ]*:", re.MULTILINE | re.DOTALL)


class ApiAccess(NamedTuple):
    key: int
    name: str
    access: str


def apis() -> Iterator[ApiAccess]:
    """One for each handler; SystemExit where a docstring has no such line."""
    for path in HANDLERS.glob("[!_]*.py"):
        docstring = ast.get_docstring(parse(path.read_text())) or ""
        match = _LINES.search(docstring)
        if match is None:
            sys.exit(f"{path.name}: the docstring has no line 'Access:' after 'API:'")
        name = docstring.partition(":")[0]
        yield ApiAccess(int(match["key"]), name, " ".join(match["access"].split()).removesuffix("."))


def page() -> str:
    return HEAD + "".join(f"| {api.name} | {api.key} | {api.access} |\n" for api in sorted(apis()))


if __name__ == "__main__":
    write_or_check(PAGE, page, "tools.list_access")
