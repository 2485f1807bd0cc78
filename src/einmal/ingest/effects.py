"""Effects that the ingester's machine asks for, and events that are reported back.

The effects of ``commit_protocol.effects`` that a transaction needs are among them, with their own events.
``SourceDown`` and ``SourceStops`` are possible answers to every effect on the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from einmal.commit_protocol import effects as protocol
from einmal.commit_protocol.claims import Output
from einmal.ingest.source import Position
from einmal.types import ProducerIdAndEpoch

# --- effects -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskOrigin:
    """Which source this is. Answer: OriginKnown."""


@dataclass(frozen=True, slots=True)
class RestoreKeys:
    """Restore the window of business keys from what the commit record has of it; None: nothing. ``is_first``: there is
    no commit record. Answer: SourceReady."""

    recorded: Any
    is_first: bool


@dataclass(frozen=True, slots=True)
class OpenSource:
    """Read from just after this position; None: from the source's beginning. Answer: SourceReady."""

    position: Position | None


@dataclass(frozen=True, slots=True)
class NextPart:
    """The next batch of the source. Answer: BatchFound, NothingNew or SourceEnded."""


@dataclass(frozen=True, slots=True)
class AppendRecords:
    """Append the records of the batch that was found last inside the transaction, without duplicates where that is
    declared. Answer: RecordsAppended, Failed, Fenced or Unclear."""

    identity: ProducerIdAndEpoch


@dataclass(frozen=True, slots=True)
class ConfirmPosition:
    """The transaction that recorded this position is committed: the source may release what lies before it. Answer:
    SourceReady."""

    position: Position


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing is new. Answer: Resumed, after a while."""


@dataclass(frozen=True, slots=True)
class IngestStops:
    """The run has ended; no answer. ``may_restart``: a new run reads the outcome from the commit record. ``is_done``:
    the source has ended."""

    reason: str
    hint: str
    may_restart: bool
    is_done: bool = False


IngestEffect = (
    AskOrigin
    | RestoreKeys
    | OpenSource
    | NextPart
    | AppendRecords
    | ConfirmPosition
    | Idle
    | IngestStops
    | protocol.Effect
)

# --- events --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OriginKnown:
    """``former``: what may be recorded for it by earlier versions."""

    origin: str
    former: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceReady:
    """The step is done."""


@dataclass(frozen=True, slots=True)
class BatchFound:
    """``end``: the position behind the batch."""

    end: Position


@dataclass(frozen=True, slots=True)
class RecordsAppended:
    """Every write is acknowledged. ``window``: what the commit record keeps of the window of business keys; None
    without one."""

    outputs: tuple[Output, ...]
    window: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class NothingNew:
    """The source has nothing new now."""


@dataclass(frozen=True, slots=True)
class SourceEnded:
    """Nothing can ever follow."""


@dataclass(frozen=True, slots=True)
class SourceDown:
    """The source does not answer now."""

    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class SourceStops:
    """The source cannot be read on without loss or duplicates."""

    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """Continue."""


IngestEvent = (
    OriginKnown
    | SourceReady
    | BatchFound
    | RecordsAppended
    | NothingNew
    | SourceEnded
    | SourceDown
    | SourceStops
    | Resumed
    | protocol.Event
)
