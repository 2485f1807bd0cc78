"""Whatever can stop an ingester names a way past it: every line that refuses, and the page that lists them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from tools.python_source import parse

import einmal.ingest
from einmal.ingest import declaration
from einmal.ingest.files import lines, look, scan
from einmal.ingest.files.decompression import Damaged, Incomplete, UnsupportedCodec
from einmal.ingest.postgresql import options, session

_PACKAGE: Final = Path(einmal.ingest.__file__).parent
_PAGE: Final = (Path(__file__).parents[2] / "docs" / "ingest.md").read_text()
_SECTION: Final = _PAGE.partition("### What stops an ingester")[2].partition("\n### ")[0]


class Refusal(NamedTuple):
    place: str
    reason: str
    hint: str


def refusals() -> list[Refusal]:
    found = []
    for path in sorted(_PACKAGE.rglob("*.py")):
        for node in ast.walk(parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "SourceRefused":
                reason, hint = (ast.unparse(each) for each in node.args)
                found.append(Refusal(f"{path.relative_to(_PACKAGE)}:{node.lineno}", reason, hint))
    return found


BY_INPUT: Final = {
    "has no key, and the topic is compacted": ["cleanup.policy=delete", "message.key.columns"],
    "kafka.max.request.size is": ["kafka.max.request.size", "max.line.bytes", "skip.long.lines"],
    "business keys": ["max.keys", "shorten the window"],
    "files are too many for one ingester": ["divide them"],
    "the key of {table} is not known": ["message.key.columns = ", "{table}:BEFORE;{table}:AFTER"],
    "which of them is the key is not known": ["leave out all but", "max.batch.size = 1"],
    "has no column {', '.join(missing)}": ["leave the table out of the outbox tables"],
    "which the log lacks of deleted": ["leave the table out", "columns of the replica identity", "IDENTITY FULL"],
    "ALTER TABLE has rewritten all rows": ["under another name"],
    "was deleted and created again": ["under another name"],
    "ahead of the recorded position": ["AFRESH"],
    "removed log that it needs": ["AFRESH"],
}
"""What a source may contain, or become, while it is ingested: part of the reason, and of the ways past it."""


def test_every_refusal_has_a_hint() -> None:
    found = refusals()
    assert len(found) > 40
    for each in found:
        assert len(each.hint) > 5 or each.hint == "hint", each


@pytest.mark.parametrize("reason", BY_INPUT)
def test_what_an_input_can_stop_names_the_way_past_it(reason: str) -> None:
    (found,) = [each for each in refusals() if reason in each.reason]
    for way in BY_INPUT[reason]:
        assert way in found.hint, found


def test_errors_of_the_database_that_its_values_cause_name_a_way_past() -> None:
    refused = session.REFUSED["22021"] or ""
    assert "UTF8" in refused and "under another name" in refused


def test_the_page_has_each_kind_and_options_that_exist() -> None:
    texts = [Path(str(module.__file__)).read_text() for module in (lines, look)]
    kinds = {kind for text in texts for kind in re.findall(r'_notice\("([a-z ]+)"', text)}
    kinds |= set(re.findall(r'(?:_set_aside|_report)\(result, "([a-z ]+)"', Path(scan.__file__).read_text()))
    kinds |= {scan._problem(error)[0] for error in (Incomplete(), Damaged(), UnsupportedCodec("xz", ""))}
    kinds |= {scan._problem(scan._WideText("UTF-16"))[0], "changing", "deleted"}
    assert {
        "long line",
        "damaged",
        "encoding",
        "hole",
        "no files",
        "incomplete",
        "not supported",
        "possible copy",
    } <= kinds
    for kind in kinds:
        assert f"`{kind}`" in _PAGE, kind
    known = {*declaration.FILES_OPTIONS, *declaration.TABLE_OPTIONS, *declaration.DEDUPLICATE_OPTIONS, *options.NAMES}
    topics = {
        "max.message.bytes",
        "cleanup.policy",
        "min.compaction.lag.ms",
        "message.timestamp.type",
        "max_slot_wal_keep_size",
    }
    asked = {each.partition(" = ")[0].partition("=")[0] for each in re.findall(r"`([a-zA-Z]+[._][^`|]*)`", _SECTION)}
    assert {"skip.long.lines", "failOnDataLoss", "message.key.columns", "skipped.operations"} - asked == {
        "failOnDataLoss"
    }
    assert {each for each in asked if not each.startswith("kafka.")} <= known | topics
