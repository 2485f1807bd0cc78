"""Ingesting a source into topics, with the source position in the transaction of the records."""

from einmal.ingest.deduplication.business_key import Deduplicate
from einmal.ingest.run import Ingest, IngestStopped
from einmal.ingest.source import (
    IngestBatch,
    IngestRecord,
    Position,
    RecordPart,
    RecordSource,
    SourceBusy,
    SourceFailed,
    SourceNotice,
    SourceRefused,
)
from einmal.types import Header

__all__ = [
    "Deduplicate",
    "Header",
    "Ingest",
    "IngestBatch",
    "IngestRecord",
    "IngestStopped",
    "Position",
    "RecordPart",
    "RecordSource",
    "SourceBusy",
    "SourceFailed",
    "SourceNotice",
    "SourceRefused",
]
