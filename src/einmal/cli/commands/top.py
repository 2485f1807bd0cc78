"""``einmal top``: brokers, topics, groups and open transactions of any Kafka cluster, again and again."""

from __future__ import annotations

import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from einmal.cli.clients import (
    Brokers,
    CommandConfig,
    Settings,
    config_of,
    failures_reported,
    inspecting,
    not_nan,
    now_ms,
)
from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format, Output
from einmal.cli.printing.output import printable, table, undisguised

if TYPE_CHECKING:
    from einmal.inspection.activity import Activity, GroupActivity
    from einmal.inspection.model import ClusterView, TransactionView

_INTERNAL: Final = "__"
"""Names of internal topics begin with this."""
_LINES_MIN: Final = 3
"""A head, a row, and how many more there are."""
_COLUMNS: Final = {
    "brokers": ("node_id", "host", "port", "controller", "leads"),
    "topics": ("topic", "partitions", "offsets_per_s", "held_back", "under_replicated"),
    "groups": ("group", "state", "members", "unread", "behind"),
    "open transactions": ("transactional_id", "age_s", "timeout_s", "producer_id", "producer_epoch", "partitions"),
}


def top(
    delay: Annotated[
        float, typer.Option("-d", "--delay", min=0.1, max=86_400, callback=not_nan, help="Seconds between two looks.")
    ] = 2.0,
    number: Annotated[int | None, typer.Option("-n", "--num", min=1, help="End after so many looks.")] = None,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Show brokers, topics with rates, groups with true lag, and open transactions, again and again.

    On a terminal it fills the screen, where each table gets its share, and q or Ctrl-C ends it; elsewhere there are
    whole tables for each look, or with --format json a line. A rate counts offsets: records and markers. Text leaves
    out internal topics; wide has them. A cluster that does not answer any more is asked again.
    """
    from einmal.client.errors import FatalError, KafkaError, LocalError
    from einmal.inspection.activity import watch

    config = config_of(brokers, settings, command_config)
    before: ClusterView | None = None
    with failures_reported(), inspecting(config) as (admin, reader), _display(output) as (show, may_go_on):
        for looks in count(1):
            began = time.monotonic()
            try:
                activity, before = watch(admin, reader, before, now_ms)
            except KafkaError as error:
                # A cluster that was there comes back: brokers restart.
                if before is None or looks == number or isinstance(error, FatalError | LocalError):
                    raise
                show(f"no answer since {_time(before.time)}, asked again: {printable(str(error))}")
            else:
                show(activity)
            if looks == number or not may_go_on(max(0.0, began + delay - time.monotonic())):
                return


Show = Callable[["Activity | str"], None]
"""Shows a look, or the sentence why there is none."""
MayGoOn = Callable[[float], bool]
"""Waits for so many seconds; False: the user has ended it."""


@contextmanager
def _display(output: Format) -> Iterator[tuple[Show, MayGoOn]]:
    if output.is_document or not sys.stdout.isatty():
        yield (lambda seen: _print(seen, output)), _slept
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=undisguised(sys.stdout))
    with Live(console=console, screen=True, auto_refresh=False) as live, _keys() as may_go_on:
        shown: list[str] = []

        def show(seen: Activity | str) -> None:
            nonlocal shown
            # What was seen last stays, below the sentence.
            shown = [seen, *shown[1:]] if isinstance(seen, str) else lines(seen, output, console.height)
            live.update(Text("\n".join(shown), no_wrap=True, overflow="crop"), refresh=True)

        yield show, may_go_on


def _slept(seconds: float) -> bool:
    time.sleep(seconds)
    return True


@contextmanager
def _keys() -> Iterator[MayGoOn]:
    """Keys of the terminal come at once, and are not echoed, where stdin is one."""
    try:
        import termios
        import tty
    except ImportError:
        # Windows has Ctrl-C.
        yield _slept
        return
    if not sys.stdin.isatty():
        yield _slept
        return
    former = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        with _interrupts() as is_interrupted:
            yield lambda seconds: not is_interrupted() and _waited_for_key(seconds)
    finally:
        # Not TCSADRAIN: it waits for ever if nobody reads what the terminal has.
        termios.tcsetattr(sys.stdin, termios.TCSANOW, former)


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C has come: Python drops a KeyboardInterrupt that is raised in a finalizer. Raises it in the main
    thread as ever."""
    came = False

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    def check() -> bool:
        if came:
            raise KeyboardInterrupt
        return False

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    former = signal.signal(signal.SIGINT, interrupt)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, former)


def _waited_for_key(seconds: float) -> bool:
    until = time.monotonic() + seconds
    while select.select([sys.stdin], [], [], max(0.0, until - time.monotonic()))[0]:
        if sys.stdin.read(1) in ("q", "Q", ""):
            return False
    return True


def _print(seen: Activity | str, output: Format) -> None:
    from einmal.inspection.document import document

    if isinstance(seen, str):
        print(f"warning: {seen}", file=sys.stderr, flush=True)
    elif output.is_document:
        print(encoded(document(seen), output), flush=True)
    else:
        print("\n".join([*lines(seen, output), ""]), flush=True)


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(" ", "seconds").replace("+00:00", " UTC")


def lines(activity: Activity, output: Format, height: int | None = None) -> list[str]:
    """The tables, the busiest topics, the longest lags and the oldest transactions first, in so many lines.

    height: None: whole; a table that is too long for its share ends with the number of rows that are left out.
    """
    sections: dict[str, list[dict[str, Any]] | None] = {
        "brokers": [
            {"node_id": broker.node_id, "host": broker.host, "port": broker.port, "controller": broker.is_controller}
            | {"leads": broker.leads}
            for broker in activity.brokers
        ],
        "topics": [
            {column: getattr(topic, column) for column in _COLUMNS["topics"]}
            for topic in sorted(activity.topics, key=lambda topic: (-(topic.offsets_per_s or 0), topic.topic))
            if output.has_all or not topic.topic.startswith(_INTERNAL)
        ],
        "groups": None if activity.groups is None else _groups(activity.groups),
        "open transactions": None if activity.open_transactions is None else _transactions(activity.open_transactions),
    }
    tables = [
        table(rows, _COLUMNS[name]) if rows is not None else [f"- ({activity.unknown.get(name.replace(' ', '_'))})"]
        for name, rows in sections.items()
    ]
    result = [f"cluster {activity.cluster_id}, {_time(activity.time)}"]
    if height is not None:
        # Each table has a name and an empty line above it.
        tables = _fitted(tables, height - len(result) - 2 * len(tables))
    for name, table_lines in zip(sections, tables, strict=True):
        result += ["", name.upper(), *table_lines]
    return result


def _fitted(tables: list[list[str]], height: int) -> list[list[str]]:
    """The tables in so many lines: what short ones leave goes to the others, in equal parts."""
    shares = [0] * len(tables)
    for done, number in enumerate(sorted(range(len(tables)), key=lambda index: len(tables[index]))):
        share = (height - sum(shares)) // (len(tables) - done)
        shares[number] = min(len(tables[number]), max(_LINES_MIN, share))
    return [
        whole if share == len(whole) else [*whole[: share - 1], f"... {len(whole) - share + 1} more"]
        for whole, share in zip(tables, shares, strict=True)
    ]


def _groups(groups: tuple[GroupActivity, ...]) -> list[dict[str, Any]]:
    return [
        {
            "group": group.group_id,
            "state": group.state,
            "members": group.members,
            "unread": f"up to {group.unread}" if group.is_upper_bound and group.unread is not None else group.unread,
            "behind": group.behind,
        }
        for group in sorted(groups, key=lambda group: (-(group.unread or 0), group.group_id))
    ]


def _transactions(transactions: tuple[TransactionView, ...]) -> list[dict[str, Any]]:
    return [
        {
            "transactional_id": transaction.transactional_id,
            "age_s": None if transaction.age_ms is None else transaction.age_ms // 1000,
            "timeout_s": None if transaction.timeout_ms is None else transaction.timeout_ms // 1000,
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.producer_epoch,
            "partitions": transaction.partitions,
        }
        for transaction in sorted(transactions, key=lambda transaction: -(transaction.age_ms or 0))
    ]
