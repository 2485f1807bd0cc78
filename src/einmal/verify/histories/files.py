"""Histories in files: ``.jsonl``, which keeps everything, and ``.edn``, which Jepsen reads.

A file in JSON Lines begins with ``{"einmal_history": 1, "is_read_to_the_end": true}``. Each further line is an
operation, in the order in which they began; what is false or empty is left out. Files are read while they are
checked, so their length does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any, Final, TypeVar

from einmal.checker.history import History, Key, Op, OpOutcome, Poll, Send
from einmal.misspelt import nearest_name
from einmal.types import TopicPartition
from einmal.verify.histories import edn, jepsen

_Decoded = TypeVar("_Decoded")
_VERSION: Final = 1
_FLAG: Final = bool | None
_FLAGS: Final = ("transactional", "starts_anew", "aborted_later", "subscribed", "rebalanced")
_KINDS: Final = {
    "process": int,
    "outcome": str,
    "began": int | float,
    "ended": int | float | None,
    "actions": list,
    "cause": str | None,
    "read_committed": _FLAG,
    **dict.fromkeys(_FLAGS, _FLAG),
}
_OFFSET_MAX: Final = 2**63 - 1


class HistoryUnreadable(Exception):
    """A file that is no history, with its name, the line and the reason."""


def read_history(path: Path) -> History:
    """Return a history whose operations are read when they are iterated. Raises HistoryUnreadable, also then."""
    if path.suffix == ".edn":
        # Jepsen's last phase reads everything, and its checker relies on it.
        return History(_EdnOps(path), is_read_to_the_end=True)
    if path.suffix != ".jsonl":
        raise HistoryUnreadable(f"{path}: a history ends with .jsonl or .edn")
    header = next(_decoded(path, json.loads), None)
    if not isinstance(header, dict) or header.get("einmal_history") != _VERSION:
        raise HistoryUnreadable(f'{path}:1: expected {{"einmal_history": {_VERSION}, "is_read_to_the_end": ...}}')
    return History(_JsonOps(path), is_read_to_the_end=header.get("is_read_to_the_end") is True)


def write_json(history: History, path: Path) -> None:
    """Raises OSError."""
    with path.open("w", encoding="utf-8") as file:
        header = {"einmal_history": _VERSION, "is_read_to_the_end": history.is_read_to_the_end}
        file.write(json.dumps(header) + "\n")
        file.writelines(json.dumps(_fields(op), separators=(",", ":")) + "\n" for op in history.ops)


def write_edn(history: History, path: Path) -> None:
    """Raises OSError."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(edn.write(event) + "\n" for event in jepsen.events(history.ops))


def _decoded(path: Path, decode: Callable[[str], _Decoded], first: int = 1) -> Iterator[_Decoded]:
    """Decode each line, from line ``first`` on. Raises HistoryUnreadable."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if number < first or line.isspace():
                    continue
                try:
                    decoded = decode(line)
                except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                    raise HistoryUnreadable(f"{path}:{number}: not an operation: {error}") from error
                yield decoded
    except UnicodeDecodeError as error:
        raise HistoryUnreadable(f"{path}: not UTF-8: {error}") from error
    except OSError as error:
        raise HistoryUnreadable(f"{path}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class _EdnOps:
    path: Path

    def __iter__(self) -> Iterator[Op]:
        try:
            yield from jepsen.ops(_decoded(self.path, _event))
        except jepsen.NotAnOperation as error:
            raise HistoryUnreadable(f"{self.path}: not an operation of Jepsen's Kafka workload: {error}") from error


def _event(line: str) -> jepsen.Event:
    event = edn.parse(line)
    if not isinstance(event, Mapping):
        raise edn.EdnWrong("expected a map such as {:type :ok, :f :poll, ...}")
    return event


@dataclass(frozen=True, slots=True)
class _JsonOps:
    path: Path

    def __iter__(self) -> Iterator[Op]:
        return _decoded(self.path, _OpDecoder(), first=2)


class _OpDecoder:
    """Decodes one line after the other."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, int], Key] = {}
        self._began = -inf

    def __call__(self, line: str) -> Op:
        op = _op(json.loads(line), self._keys)
        if op.began < self._began:
            # A reader's order is that of its operations.
            raise ValueError(f"it began at {op.began}, before the one above it: operations are in order of 'began'")
        self._began = op.began
        return op


def _fields(op: Op) -> dict[str, Any]:
    fields: dict[str, Any] = {"process": op.process, "outcome": op.outcome.value, "began": op.began}
    if op.ended is not None:
        fields["ended"] = op.ended
    fields |= {name: True for name in _FLAGS if getattr(op, name)}
    if not op.read_committed:
        fields["read_committed"] = False
    if op.cause:
        fields["cause"] = op.cause
    fields["actions"] = [
        ["send", *action.key, action.value, action.offset]
        if isinstance(action, Send)
        else ["poll", *action.key, action.records]
        for action in op.actions
    ]
    return fields


def _op(fields: Mapping[str, Any], keys: dict[tuple[str, int], Key]) -> Op:
    if not fields.keys() <= _KINDS.keys():
        # A flag that is misspelt would change the verdict.
        unknown = next(name for name in fields if name not in _KINDS)
        nearest = nearest_name(unknown, _KINDS)
        raise ValueError(f"unknown field {unknown!r}" + ("" if nearest is None else f"; did you mean {nearest!r}?"))
    flags = {name: True for name in _FLAGS if fields.get(name)}
    for name, kinds in _KINDS.items():
        if not isinstance(fields.get(name), kinds) or (kinds is not _FLAG and isinstance(fields.get(name), bool)):
            raise ValueError(f"{name!r} cannot be {fields.get(name)!r}")
    began, ended = float(fields["began"]), fields.get("ended")
    if not (isfinite(began) and (ended is None or began <= ended < inf)):
        raise ValueError(f"'began' {began} and 'ended' {ended} are not a span of time")
    return Op(
        process=fields["process"],
        actions=tuple([_action(action, keys) for action in fields["actions"]]),
        outcome=OpOutcome(fields["outcome"]),
        read_committed=fields.get("read_committed") is not False,
        began=began,
        ended=None if ended is None else float(ended),
        cause=fields.get("cause") or "",
        **flags,
    )


def _action(fields: list[Any], keys: dict[tuple[str, int], Key]) -> Send | Poll:
    kind, topic, partition, *more = fields
    key = keys.get((topic, partition))
    if key is None:
        if not isinstance(topic, str):
            raise ValueError(f"a topic is text, not {topic!r}")
        key = keys[topic, partition] = TopicPartition(topic, _offset(partition))
    if kind == "send":
        value, offset = more
        return Send(key, _value(value), None if offset is None else _offset(offset))
    if kind != "poll":
        raise ValueError(f"unexpected action {kind!r}; expected send or poll")
    (records,) = more
    return Poll(key, tuple([(_offset(offset), _value(value)) for offset, value in records]))


def _offset(offset: object) -> int:
    if type(offset) is not int or not 0 <= offset <= _OFFSET_MAX:
        raise ValueError(f"an offset is a whole number, not {offset!r}")
    return offset


def _value(value: object) -> str:
    """Numbers as text, as in Jepsen's files."""
    if type(value) is str:
        return value
    if type(value) is not int:
        raise ValueError(f"a value is text or a whole number, not {value!r}")
    return str(value)
