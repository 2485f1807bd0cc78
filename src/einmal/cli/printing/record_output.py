"""A record as ``einmal topic consume`` prints it: its value, a template's text, or a line of JSON.

The letters of a template are rpk's, and kcat's where rpk has none or another use for the letter is rare.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format

if TYPE_CHECKING:
    from einmal.client.records import ConsumerRecord, LogEnds
    from einmal.wire.record_batch import BatchHeader

LETTERS_HELP: Final = (
    r"%t topic, %p partition, %o offset, %k key, %v or %s value, %d or %T timestamp in ms, %h headers; "
    r"%K, %V or %S, %H: lengths of key and value (-1: null), number of headers; %e leader epoch, %x producer id, "
    r"%y producer epoch, %| last stable offset, %] high watermark, %% a percent sign, %{ and %} braces, \n, \t, \r."
)


class Shown(NamedTuple):
    """A record to print. ``ends``: those of its partition, as of the last fetch."""

    record: ConsumerRecord
    ends: LogEnds


Letter = Callable[[Shown], Any]

_ESCAPES: Final[Mapping[str, bytes]] = {r"\n": b"\n", r"\t": b"\t", r"\r": b"\r", "%%": b"%", "%{": b"{", "%}": b"}"}
_TOKENS: Final = re.compile(r"(%[^%{]\{[^}]*\}?|%.?|\\[ntr])", re.DOTALL)
_SPACES: Final = re.compile(r"(\\[ntr])")
_LETTERS: Final[Mapping[str, Letter]] = {
    "%t": lambda shown: shown.record.topic,
    "%p": lambda shown: shown.record.partition,
    "%o": lambda shown: shown.record.offset,
    "%k": lambda shown: shown.record.key or b"",
    "%v": lambda shown: shown.record.value or b"",
    "%s": lambda shown: shown.record.value or b"",
    "%d": lambda shown: shown.record.timestamp,
    "%T": lambda shown: shown.record.timestamp,
    "%h": lambda shown: b",".join(
        header.key.encode() + b"=" + (header.value or b"") for header in shown.record.headers
    ),
    "%K": lambda shown: _length(shown.record.key),
    "%V": lambda shown: _length(shown.record.value),
    "%S": lambda shown: _length(shown.record.value),
    "%H": lambda shown: len(shown.record.headers),
    "%e": lambda shown: shown.record.leader_epoch,
    "%x": lambda shown: -1 if shown.record.batch is None else shown.record.batch.producer_id,
    "%y": lambda shown: -1 if shown.record.batch is None else shown.record.batch.producer_epoch,
    "%|": lambda shown: shown.ends.last_stable_offset,
    "%]": lambda shown: shown.ends.high_watermark,
}


def unescaped(text: str) -> bytes:
    r"""The bytes of a text in which \n, \t and \r are what they are in a template."""
    return b"".join(_ESCAPES.get(part) or os.fsencode(part) for part in _SPACES.split(text))


def shower(template: str | None, output: Format) -> Callable[[Shown], bytes]:
    """A record as bytes: those of a value pass as they are. Raises typer.BadParameter for an unknown letter, and for a
    template with ``--format json`` or ``yaml``."""
    if output.is_document and template is not None:
        raise typer.BadParameter(f"--template has its own form: give it, or --format {output.value}")
    if output.is_document:
        return lambda shown: encoded(_as_json(shown.record), output).encode() + b"\n"
    if template is None:
        return lambda shown: (shown.record.value or b"") + b"\n"
    tokens = [_token(token, is_letter=number % 2 == 1) for number, token in enumerate(_TOKENS.split(template))]
    return lambda shown: b"".join(token if isinstance(token, bytes) else _encoded(token(shown)) for token in tokens)


def _token(token: str, *, is_letter: bool) -> bytes | Letter:
    if not is_letter:
        return os.fsencode(token)
    if token in _ESCAPES:
        return _ESCAPES[token]
    if token[:2] in _LETTERS and token[2:]:
        raise typer.BadParameter(
            f"{token!r}: letters have no modifiers here, and %{{ is a brace; JSON has bytes as hex"
        )
    if token not in _LETTERS:
        raise typer.BadParameter(f"{token!r} is no letter of a template; there are {LETTERS_HELP}")
    return _LETTERS[token]


def _encoded(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _length(value: bytes | None) -> int:
    return -1 if value is None else len(value)


def _as_json(record: ConsumerRecord) -> dict[str, Any]:
    """``control``: the meaning of a marker, in place of its key and value."""
    batch = record.batch
    is_control = batch is not None and batch.is_control
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": None if is_control else _json_value(record.key),
        "value": None if is_control else _json_value(record.value),
        "headers": [{"key": header.key, "value": _json_value(header.value)} for header in record.headers],
        **_of_batch(record, batch),
        "control": _control(record) if is_control else None,
    }


def _of_batch(record: ConsumerRecord, batch: BatchHeader | None) -> dict[str, Any]:
    """Fields of the record's batch; null where it has no producer id, or no sequence."""
    names = ("timestamp_type", "leader_epoch", "producer_id", "producer_epoch", "sequence", "transactional")
    if batch is None:
        return dict.fromkeys(names)
    is_numbered = batch.base_sequence >= 0
    has_producer = batch.producer_id >= 0
    values = (
        "LogAppendTime" if batch.has_log_append_time else "CreateTime",
        batch.partition_leader_epoch,
        batch.producer_id if has_producer else None,
        batch.producer_epoch if has_producer else None,
        (batch.base_sequence + record.offset - batch.base_offset) & 0x7FFF_FFFF if is_numbered else None,
        batch.is_transactional,
    )
    return dict(zip(names, values, strict=True))


def _control(record: ConsumerRecord) -> dict[str, Any]:
    from einmal.wire.control_batch import ABORT, COMMIT, control_type, decode_marker
    from einmal.wire.record_batch import Record

    plain = Record(record.offset, record.timestamp, record.key, record.value, record.headers)  # type: ignore[arg-type]
    kind = control_type(plain)
    if kind not in (ABORT, COMMIT):
        return {"type": str(kind), "coordinator_epoch": None}
    return {
        "type": "COMMIT" if kind == COMMIT else "ABORT",
        "coordinator_epoch": decode_marker(plain).coordinator_epoch,
    }


def _json_value(value: bytes | None) -> Any:
    """Text if it is UTF-8; else an object that names the encoding, because JSON has no bytes."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}
