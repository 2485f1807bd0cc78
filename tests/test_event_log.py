"""Events have stable names and fields, as JSON beside the sentence; docs/log-events.md lists them."""

import ast
import json
import logging
import re
from collections import defaultdict

import pytest
from tools.list_log_events import LEVELS, PLACEHOLDER, SOURCE, events, packages
from tools.python_source import parse

from einmal.cli.printing.log_formats import JsonFormatter, TextFormatter
from einmal.event_log import LENGTH_MAX, EventLog
from einmal.types import TopicPartition

_OF_A_LINE = {"time", "level", "logger", "event", "message", "exception"}
_CALL = re.compile(r"\b(_?log|_?logger|logging)\s*\.\s*\w+\(")
"""The text of a module that logs has one; its tree shows whether it is a call of a logger."""
log = EventLog("einmal.test")


def line_of(caplog: pytest.LogCaptureFixture) -> dict[str, object]:
    (record,) = caplog.records
    line = json.loads(JsonFormatter().format(record))
    assert isinstance(line, dict)
    return line


def test_a_line_as_json_has_name_sentence_and_fields(caplog: pytest.LogCaptureFixture) -> None:
    error = OSError(28, "no space")
    log.error("log_offline", "%(path)s: %(error)s", path=TopicPartition("t", 0), error=error, isr=[1, 2], client="here")
    line = line_of(caplog)
    del line["time"]
    assert line == {
        "level": "error",
        "logger": "einmal.test",
        "event": "log_offline",
        "message": "t-0: [Errno 28] no space",
        "path": "t-0",
        "error": "[Errno 28] no space",
        "isr": [1, 2],
        "client": "here",
    }


def test_a_line_as_text_has_the_fields_that_are_not_in_the_sentence(caplog: pytest.LogCaptureFixture) -> None:
    log.warning("connection_closed", "connection closed: %(reason)s", reason="100 % idle", client="here")
    assert TextFormatter().format(caplog.records[0]).endswith("WARNING connection closed: 100 % idle client=here")


def test_a_sentence_without_fields_is_written_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    log.warning("full", "100 % full")
    assert line_of(caplog)["message"] == "100 % full"


def test_a_long_field_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    log.warning("no_topic", "no topic", topic="x" * 1_000_000, topics=["x" * 1_000_000])
    line = line_of(caplog)
    assert all(len(str(line[name])) < LENGTH_MAX + 100 for name in ("topic", "topics"))


def test_a_line_of_another_library_has_a_name(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("asyncio").warning("%s is slow", "it")
    line = line_of(caplog)
    assert (line["event"], line["logger"], line["message"]) == ("other", "asyncio", "it is slow")


def test_a_line_names_the_module_and_line_that_logged_it(caplog: pytest.LogCaptureFixture) -> None:
    log.warning("here", "here")
    assert (caplog.records[0].filename, caplog.records[0].funcName) == (
        "test_event_log.py",
        "test_a_line_names_the_module_and_line_that_logged_it",
    )


def test_every_sentence_names_fields_and_every_name_has_one_level_and_one_set_of_fields() -> None:
    shapes = defaultdict(set)
    for package, logged in packages().items():
        for each in logged:
            shapes[package, each.name].add((each.level, frozenset(each.fields)))
            assert set(PLACEHOLDER.findall(each.sentence)) <= set(each.fields), each.at
            assert not _OF_A_LINE & set(each.fields), each.at
    assert [name for name, shape in shapes.items() if len(shape) > 1] == []
    names = [name for _package, name in shapes]
    assert len(names) == len(set(names))


def test_nothing_is_logged_without_a_name() -> None:
    """By a call of a logger of the standard library, or of the root logger."""
    unnamed = []
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if not _CALL.search(text):
            continue
        tree = parse(text)
        named = len(list(events(path)))
        variables = {"log", "_log", "_logger", "logger", "logging"}
        for call in ast.walk(tree):
            match call:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attribute)) if (
                    name in variables and attribute in (*LEVELS, "exception", "critical", "log")
                ):
                    named -= 1
        if named < 0:
            unnamed.append(str(path))
    assert unnamed == []
