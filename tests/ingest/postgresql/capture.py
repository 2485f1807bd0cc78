"""A source on a real server, driven as the ingester drives it: read, then confirm what is committed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

from einmal.ingest.postgresql.options import CaptureOptions, capture_options
from einmal.ingest.postgresql.source import PostgresSource
from einmal.ingest.source import IngestBatch, IngestRecord, Position, SourceNotice
from tests.sinks.postgres.server import PASSWORD, PostgresServer

SLOT = "einmal_slot"
PUBLICATION = "einmal_publication"
PREFIX = "shop"


class Change(NamedTuple):
    """What a test compares: the table, ``op``, the key and the new row, or the old one of a delete."""

    table: str
    op: str
    key: dict[str, Any] | None
    row: dict[str, Any] | None


class Batch(NamedTuple):
    records: list[IngestRecord]
    end: Position

    def changes(self) -> list[Change]:
        return [change(each) for each in self.records if each.value is not None]

    def transactions(self) -> list[str]:
        """Ids, in their order, each once."""
        values = [json.loads(each.value) for each in self.records if each.value is not None]
        return list(dict.fromkeys(value["transaction"]["id"] for value in values if value["transaction"]))


def change(record: IngestRecord) -> Change:
    assert record.value is not None
    value = json.loads(record.value)
    assert record.topic == f"{PREFIX}.{value['source']['schema']}.{value['source']['table']}"
    row = value["before"] if value["op"] == "d" else value["after"]
    return Change(value["source"]["table"], value["op"], None if record.key is None else json.loads(record.key), row)


def options(server: PostgresServer | int, database: str, *, user: str = "admin", **others: Any) -> CaptureOptions:
    """``server``: or its port. ``others``: options with ``__`` for a dot."""
    port = server if isinstance(server, int) else server.port
    return capture_options(
        {
            "url": f"postgresql://{user}@127.0.0.1:{port}/{database}",
            "password": PASSWORD,
            "lock_timeout": "5s",
            "slot.name": SLOT,
            "publication.name": PUBLICATION,
            "topic.prefix": PREFIX,
            **{name.replace("__", "."): value for name, value in others.items()},
        }
    )


class Captured:
    """One ingester after the other, as the source sees them; ``position`` is what their last transaction recorded."""

    def __init__(self, capture: CaptureOptions, position: Position | None = None) -> None:
        self.options = capture
        self.position = position
        self.notices: list[SourceNotice] = []

    def batches(self, *, confirm: bool = True) -> Iterator[Batch]:
        """What a new process ingests until nothing is new; without ``confirm`` one batch, after which it dies."""
        with closing(PostgresSource(self.options)) as source:
            if self.position is not None and confirm:
                source.confirm(self.position)
            parts = source.read(self.position)
            for part in parts:
                match part:
                    case None:
                        break
                    case SourceNotice():
                        self.notices.append(part)
                    case IngestBatch():
                        batch = Batch(list(part.records), json.loads(json.dumps(part.end)))
                        self.position = batch.end
                        if confirm:
                            source.confirm(batch.end)
                        yield batch
                        if not confirm:
                            break
            parts.close()  # type: ignore[attr-defined]

    def drain(self) -> list[Batch]:
        return list(self.batches())

    def changes(self) -> list[Change]:
        return [each for batch in self.batches() for each in batch.changes()]
