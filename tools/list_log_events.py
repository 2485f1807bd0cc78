"""List every event that is logged, with its level, fields and sentence, into docs/log-events.md.

Usage: python -m tools.list_log_events [--check]
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.generated_page import write_or_check
from tools.python_source import parse

ROOT: Final = Path(__file__).parent.parent
SOURCE: Final = ROOT / "src" / "einmal"
PAGE: Final = ROOT / "docs" / "log-events.md"
LEVELS: Final = ("debug", "info", "warning", "error")
PLACEHOLDER: Final = re.compile(r"%\((\w+)\)[.\d]*[a-z]")
_INTRODUCTION: Final = """# Log events

Every event that einmal logs, by the package that logs it. A log line as JSON has `time`, `level`, `logger`, `event`
(the name below), `message` (the sentence with its values) and the event's fields; a line as text is the sentence, and
the fields that it does not contain. Names and fields are stable: a later version may add some, and lists a change in
the changelog. [Monitoring](monitoring.md#log) shows how to choose the format.

Two names have no row: `similar_lines_suppressed` (`count`, `text`) reports lines that were not written, because more
than 20 of their kind came within 10 seconds; `other` is a line of another library.

`tools/list_log_events.py` writes this page; a test checks that it is up to date."""


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """A call that logs. ``at``: file and line."""

    name: str
    level: str
    fields: tuple[str, ...]
    sentence: str
    at: str


def events(path: Path) -> Iterator[LoggedEvent]:
    """Yield the events that a module logs. Raises ValueError where a name or a sentence is no literal."""
    text = path.read_text()
    if "EventLog(" not in text:
        return
    tree = parse(text)
    texts = list(_texts(tree))
    logs = {name for name, value, _ in _assigned(tree) if _is_event_log(value)}
    for call in ast.walk(tree):
        match call:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=log), attr=level)) if log in logs and level in LEVELS:
                yield _event(call, level, texts, f"{path.relative_to(ROOT)}:{call.lineno}")


def _event(call: ast.Call, level: str, texts: list[tuple[int, str, str]], at: str) -> LoggedEvent:
    match call.args:
        case [ast.Constant(value=str(name)), ast.Constant(value=str(sentence))]:
            pass
        case [ast.Constant(value=str(name)), ast.Name(id=variable)]:
            before = [text for line, known, text in texts if known == variable and line <= call.lineno]
            if not before:
                raise ValueError(f"{at}: {variable} is no literal")
            sentence = before[-1]
        case _:
            raise ValueError(f"{at}: the name and the sentence of an event are literals")
    if any(keyword.arg is None for keyword in call.keywords):
        raise ValueError(f"{at}: fields are named one by one")
    return LoggedEvent(
        name, level, tuple(str(keyword.arg) for keyword in call.keywords if keyword.arg != "exc_info"), sentence, at
    )


def _texts(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    for name, value, line in _assigned(tree):
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield line, name, value.value


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr, int]]:
    """Variables with their values and lines, in the order of lines."""
    assignments: list[tuple[str, ast.expr, int]] = []
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                assignments.append((name, value, node.lineno))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                assignments.append((name, value, node.lineno))
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                pairs = zip(names, values, strict=False)
                assignments += [(name.id, value, node.lineno) for name, value in pairs if isinstance(name, ast.Name)]
    yield from sorted(assignments, key=lambda assignment: assignment[2])


def _is_event_log(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "EventLog"


def packages() -> dict[str, list[LoggedEvent]]:
    by_package: dict[str, list[LoggedEvent]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for event in events(path):
            by_package.setdefault(path.relative_to(SOURCE).parts[0], []).append(event)
    return by_package


def page() -> str:
    lines = [_INTRODUCTION]
    for package, logged in packages().items():
        lines += ["", f"## {package}", "", "| event | level | fields | sentence |", "|---|---|---|---|"]
        rows = {(event.name, _sentence(event.sentence)): event for event in logged}
        for (name, sentence), event in sorted(rows.items()):
            fields = ", ".join(f"`{field}`" for field in event.fields)
            lines.append(f"| `{name}` | {event.level} | {fields} | {sentence} |")
    return "\n".join(lines) + "\n"


def _sentence(text: str) -> str:
    return PLACEHOLDER.sub(r"*\1*", text).replace("|", "\\|")


if __name__ == "__main__":
    write_or_check(PAGE, page, "tools.list_log_events")
