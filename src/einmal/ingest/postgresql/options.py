"""Options of what is captured from a database, and where its rows go, under Debezium's names. Pure, but for libpq's
parser of connection strings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from einmal.ingest.postgresql import outbox
from einmal.ingest.postgresql.envelope import legal_topic
from einmal.ingest.postgresql.tables import Routing
from einmal.options.values import OptionError, Options
from einmal.postgresql.options import CONNECTING, Connecting, connecting

NAMES: Final = (
    *CONNECTING, "slot.name", "publication.name",
    "topic.prefix", "snapshot.mode", "tombstones.on.delete", "max.batch.size", "outbox.tables",
    "route.topic.replacement", "message.key.columns", "skipped.operations",
)  # fmt: skip
SECRETS: Final = ("password",)
_BATCH: Final = 10_000
_BATCH_MAX: Final = 2**31 - 1
"""The server takes no larger number."""
_SLOT: Final = re.compile(r"[a-z0-9_]{1,63}")


class SnapshotMode(StrEnum):
    """Snapshot mode of a source without a position yet, with Debezium's names."""

    INITIAL = "initial"
    """The rows that the tables have, then every change."""
    NO_DATA = "no_data"
    """Every change that is committed behind the slot's position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """``changes_max``: messages after which a batch ends with its transaction; small transactions share a batch up to
    it, a larger one is a batch of its own."""

    connecting: Connecting
    slot: str
    publication: str
    routing: Routing
    snapshot: SnapshotMode = SnapshotMode.INITIAL
    changes_max: int = _BATCH


def capture_options(given: Mapping[str, Any]) -> CaptureOptions:
    """Raises OptionError."""
    options = Options(given)
    options.refuse_unknown(NAMES, kafka=False)
    return CaptureOptions(
        connecting=connecting(options),
        slot=_slot(options),
        publication=options.required("publication.name", "einmal"),
        routing=_routing(options),
        snapshot=_snapshot(options),
        changes_max=options.number("max.batch.size", _BATCH, maximum=_BATCH_MAX) or _BATCH,
    )


def _slot(options: Options) -> str:
    slot = options.required("slot.name", "einmal_orders")
    if not _SLOT.fullmatch(slot):
        raise OptionError(f'option "slot.name" has lower-case letters, digits and _, at most 63, not {slot!r}')
    return slot


def _routing(options: Options) -> Routing:
    prefix = options.required("topic.prefix", "shop")
    if legal_topic(prefix) != prefix or prefix.startswith("__"):
        raise OptionError(f'option "topic.prefix" begins the names of topics: {prefix!r} cannot')
    tables = [table.strip() for table in (options.text("outbox.tables") or "").split(",") if table.strip()]
    for table in tables:
        if "." not in table:
            raise OptionError(f'option "outbox.tables" has {table!r}\nhint: with the schema, such as public.{table}')
    template = options.text("route.topic.replacement") or outbox.TOPIC
    if problem := outbox.template_problem(template):
        raise OptionError(f'option "route.topic.replacement": {problem}')
    return Routing(
        prefix=prefix,
        outbox=frozenset(tables),
        outbox_topic=template,
        tombstones=options.flag("tombstones.on.delete", True),
        keys=_keys(options),
        truncates=_truncates(options),
    )


def _keys(options: Options) -> dict[str, tuple[tuple[str, ...], ...]]:
    """``schema.table:column,column;schema.table:column``, without Debezium's patterns. A table may be there several
    times: its columns had other names at another time."""
    keys: dict[str, tuple[tuple[str, ...], ...]] = {}
    for declaration in filter(str.strip, (options.text("message.key.columns") or "").split(";")):
        table, _, names = (component.strip() for component in declaration.partition(":"))
        columns = tuple(name.strip() for name in names.split(",") if name.strip())
        if "." not in table or not columns:
            raise OptionError(
                f'option "message.key.columns" has {declaration.strip()!r}\nhint: "public.orders:id", with the schema; '
                'commas between columns, ";" between tables'
            )
        keys[table] = tuple(dict.fromkeys((*keys.get(table, ()), columns)))
    return keys


def _truncates(options: Options) -> bool:
    skipped = (options.text("skipped.operations") or "none").lower()
    if skipped not in ("none", "t"):
        raise OptionError(f'option "skipped.operations" is none, or t for TRUNCATE, not {skipped!r}')
    return skipped == "none"


def _snapshot(options: Options) -> SnapshotMode:
    mode = (options.text("snapshot.mode") or SnapshotMode.INITIAL).lower()
    if mode not in list(SnapshotMode):
        raise OptionError(f'option "snapshot.mode" is one of {", ".join(SnapshotMode)}, not {mode!r}')
    return SnapshotMode(mode)
