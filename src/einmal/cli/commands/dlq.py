"""``einmal dlq``: dead letters, and the replay of their original records. Needs no Spark."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from einmal.cli.aliases import WithAliases
from einmal.cli.clients import Brokers, CommandConfig, Settings, config_of, failures_reported
from einmal.cli.confirmation import confirm
from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format, Output
from einmal.cli.printing.output import print_rows

if TYPE_CHECKING:
    from einmal.spark.operate.dead_letter_queue import DeadLetter, DeadLetterQueue, Selection

dlq = typer.Typer(cls=WithAliases, help="Dead letters: list, show, replay.", no_args_is_help=True)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Dead-letter topic.")]
Reasons = Annotated[
    list[str] | None, typer.Option("--reason", metavar="NAME", help="Only with this error, such as MissingField.")
]
Stages = Annotated[list[str] | None, typer.Option("--stage", metavar="NAME", help="Only of this stage.")]
Sources = Annotated[list[str] | None, typer.Option("--source", metavar="NAME", help="Only of this source.")]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only with a timestamp from here on: ISO 8601, or ms since 1970."),
]
Offsets = Annotated[
    list[str] | None,
    typer.Option("--offset", metavar="PARTITION:OFFSET", help="Only this record of the dead-letter topic."),
]

_COLUMNS: Final = ("source", "stage", "reason", "topic", "count", "replayed", "oldest", "newest")
_SHOWN_BYTES: Final = 512
_POSITION: Final = re.compile(r"(\d{1,9}):(\d{1,19})")


@dlq.command("list")
def list_letters(
    topic: Topic,
    reasons: Reasons = None,
    stages: Stages = None,
    sources: Sources = None,
    since: Since = None,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Count dead letters by source, stage, reason and original topic."""
    selection = _selection(reasons, stages, sources, since, None)
    with _queue(topic, brokers, settings, command_config) as queue:
        groups = queue.groups(selection)
    rows = [
        {
            **group._asdict(),
            "count": counted.count,
            "replayed": counted.replayed,
            "oldest": _time(counted.oldest),
            "newest": _time(counted.newest),
        }
        for group, counted in groups.items()
    ]
    print_rows(rows, _COLUMNS, output)


@dlq.command()
def show(
    topic: Topic,
    position: Annotated[
        str | None, typer.Argument(metavar="[PARTITION:OFFSET]", help="Which one. Default: the first selected.")
    ] = None,
    reasons: Reasons = None,
    stages: Stages = None,
    sources: Sources = None,
    since: Since = None,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Show one dead letter: why it failed, its headers, and the first 512 bytes of key and value."""
    selection = _selection(reasons, stages, sources, since, None)
    at = None if position is None else _position(position)
    with _queue(topic, brokers, settings, command_config) as queue:
        letter = next(queue.letters(selection), None) if at is None else queue.letter(*at)
    if letter is None:
        print(
            f"error: {topic} has no such dead letter\nhint: einmal dlq list {topic} shows what there is",
            file=sys.stderr,
        )
        raise typer.Exit(1)
    row = _row(letter)
    if output.is_document:
        print(encoded(row, output))
        return
    for name, value in row.items():
        text = ", ".join(f"{key}={what}" for key, what in value.items()) if isinstance(value, dict) else value
        print(f"{name:<12}{'-' if text in (None, '') else text}")


@dlq.command()
def replay(
    topic: Topic,
    reasons: Reasons = None,
    stages: Stages = None,
    sources: Sources = None,
    since: Since = None,
    offsets: Offsets = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TOPIC", help="Target topic. Default: each record's original topic.")
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Copy the original records of dead letters back to their topics, each once, also if the command is repeated."""
    selection = _selection(reasons, stages, sources, since, offsets)
    with _queue(topic, brokers, settings, command_config) as queue:
        groups = queue.groups(selection)
        count = sum(counted.count - counted.replayed for counted in groups.values())
        targets = [to] if to else sorted({group.topic or "(unknown)" for group in groups})
        print(f"{topic}: copies {count:,} records to {', '.join(targets) or 'no topic'}", file=sys.stderr)
        confirm("Do it?", yes or not count)
        done = queue.replay(selection, to=to)
    if output.is_document:
        print(encoded({"topic": topic, "copied": done.copied, "replayed_earlier": done.earlier}, output))
    else:
        print(f"{done.copied:,} copied, {done.earlier:,} replayed earlier")


# --- parts ------------------------------------------------------------------------------------------------------


@contextmanager
def _queue(
    topic: str, brokers: str | None, settings: list[str] | None, command_config: Path | None
) -> Iterator[DeadLetterQueue]:
    from einmal.spark.operate.dead_letter_queue import DeadLetterQueue, ReplayRefused

    config = {name: str(value) for name, value in config_of(brokers, settings, command_config).items()}
    with failures_reported():
        try:
            with DeadLetterQueue(config, topic) as queue:
                yield queue
        except ReplayRefused as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(1) from error


def _selection(
    reasons: list[str] | None,
    stages: list[str] | None,
    sources: list[str] | None,
    since: str | None,
    offsets: list[str] | None,
) -> Selection:
    from einmal.spark.operate.dead_letter_queue import Selection

    return Selection(
        reasons=frozenset(reasons or ()),
        stages=frozenset(stages or ()),
        sources=frozenset(sources or ()),
        since_ms=None if since is None else _ms(since),
        offsets=frozenset(map(_position, offsets or ())),
    )


def _ms(text: str) -> int:
    import datetime

    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"--since is a time such as 2026-01-31T12:00:00Z, not {text!r}") from error
    return round((moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp() * 1000)


def _position(text: str) -> tuple[int, int]:
    match = _POSITION.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"a dead letter is PARTITION:OFFSET, such as 0:42, not {text!r}")
    return int(match[1]), int(match[2])


def _time(ms: int) -> str | None:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms / 1000)) if ms >= 0 else None


def _row(letter: DeadLetter) -> dict[str, Any]:
    from einmal.pipeline.dead_letters import original_headers

    original = letter.original
    return {
        "position": f"{letter.position}:{letter.offset}",
        "original": None if original is None else f"{original[0]}:{original[1]}",
        "timestamp": _time(letter.timestamp),
        "source": letter.source,
        "stage": letter.stage,
        "reason": letter.reason,
        "message": letter.message,
        "headers": {header.key: _shown(header.value) for header in original_headers(letter.headers)},
        "key": _shown(letter.key),
        "value": _shown(letter.value),
    }


def _shown(raw: bytes | None) -> str | None:
    """Text if it is, else hexadecimal digits; cut, with its size."""
    if raw is None:
        return None
    cut = raw[:_SHOWN_BYTES]
    try:
        text = cut.decode("utf-8")
        shown = text if text.isprintable() else f"0x{cut.hex()}"
    except UnicodeDecodeError:
        shown = f"0x{cut.hex()}"
    return shown if len(raw) <= _SHOWN_BYTES else f"{shown}... ({len(raw):,} bytes)"
