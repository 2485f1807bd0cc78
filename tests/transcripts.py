"""Transcript tests, in the style of etcd/raft: a text file of commands, each with everything that comes of it.

    # Why this happens.
    command argument ...
    ----
    the complete output, one line for each thing that happened

A test runs the commands of a file one after the other and compares. So a transcript is documentation that cannot be
wrong, and a change of behavior shows as a diff of messages. ``EINMAL_REWRITE=1`` writes what was found into the files:
read that diff as carefully as one of the code.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

_SEPARATOR: Final = "----"
_NOTHING: Final = "nothing happens"
_QUIETLY: Final = "quietly "


class Block(NamedTuple):
    comment: list[str]
    command: str
    expected: list[str]


class World:
    """What commands act on: a command ``some-thing a b`` is ``do_some_thing("a", "b")``, which logs what happens.

    ``quietly`` before a command leaves out what happens: another transcript shows it.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []

    def log(self, line: str) -> None:
        self._lines.append(line)

    def run(self, command: str) -> list[str]:
        name, *arguments = command.removeprefix(_QUIETLY).split()
        getattr(self, f"do_{name.replace('-', '_')}")(*arguments)
        found, self._lines = self._lines, []
        return ["..."] if command.startswith(_QUIETLY) else found or [_NOTHING]


def check(path: Path, world: World) -> None:
    """Run a transcript; its output must be as recorded."""
    blocks = list(parse(path.read_text()))
    assert blocks, f"{path} has no command"
    found = [block._replace(expected=world.run(block.command)) for block in blocks]
    if os.environ.get("EINMAL_REWRITE"):
        path.write_text("\n".join(_text(block) for block in found))
    for block, after in zip(blocks, found, strict=True):
        assert after.expected == block.expected, f"{path.name}: {block.command}"


def parse(text: str) -> Iterator[Block]:
    for part in text.strip().split("\n\n"):
        lines = part.splitlines()
        count = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
        comment, rest = lines[:count], lines[count:]
        if rest:
            command, separator, *expected = [*rest, _SEPARATOR] if len(rest) == 1 else rest
            assert separator == _SEPARATOR, f"no {_SEPARATOR} after {command!r}"
            yield Block(comment, command, expected)


def _text(block: Block) -> str:
    return "\n".join([*block.comment, block.command, _SEPARATOR, *block.expected]) + "\n"


def show(value: Any) -> str:
    """A value in one line: fields that have their default are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        named = [
            (each.name, getattr(value, each.name), each.default if each.default is not MISSING else MISSING)
            for each in fields(value)
        ]
        return _call(type(value).__name__, named)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        if len(value) == 2 and all(isinstance(each, int) for each in value):
            return f"{value[0]}/{value[1]}"
        kind: Any = type(value)
        named = [(name, getattr(value, name), kind._field_defaults.get(name, MISSING)) for name in kind._fields]
        return _call(kind.__name__, named)
    if isinstance(value, tuple):
        return f"[{' '.join(map(show, value))}]"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes):
        return value.decode()
    return str(value)


def _call(name: str, named: list[tuple[str, Any, Any]]) -> str:
    return " ".join([name, *(f"{key}={show(value)}" for key, value, default in named if value != default)])
