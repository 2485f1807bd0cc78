"""Reads a source of files as an ingester does: a position is kept with the lines before it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from einmal.ingest import IngestBatch, IngestRecord, SourceBusy, SourceNotice
from einmal.ingest.files import FilesSource


@dataclass
class Reader:
    """``committed``: records of committed batches. Each ``restart`` is another process."""

    pattern: Path
    settings: dict[str, Any] = field(default_factory=dict)
    committed: list[IngestRecord] = field(default_factory=list)
    notices: list[SourceNotice] = field(default_factory=list)
    position: Any = None

    def __post_init__(self) -> None:
        self.source = FilesSource(str(self.pattern), "lines", **self.settings)
        self.reopen()

    def restart(self) -> None:
        self.source.close()
        self.source = FilesSource(str(self.pattern), "lines", **self.settings)
        self.reopen()

    def reopen(self) -> None:
        """As after a failed transaction: the same process reads again from the committed position."""
        self._parts = self.source.read(None if self.position is None else json.loads(json.dumps(self.position)))

    def next_batch(self) -> IngestBatch | None:
        while isinstance(part := next(self._parts), SourceNotice | SourceBusy):
            self.notices += [part] if isinstance(part, SourceNotice) else []
        return part

    def commit(self, batch: IngestBatch) -> None:
        self.committed += batch.records
        self.position = batch.end

    def read(self) -> list[str]:
        """Everything there is now; the lines of this call."""
        begin = len(self.committed)
        while (batch := self.next_batch()) is not None:
            self.commit(batch)
        return [(record.value or b"").decode() for record in self.committed[begin:]]

    @property
    def lines(self) -> list[str]:
        return [(record.value or b"").decode() for record in self.committed]

    def kinds(self) -> list[str]:
        return [notice.kind for notice in self.notices]
