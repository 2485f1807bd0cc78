"""The model that is drawn: lanes, rows in the order of time, and bars. Times are milliseconds since the transaction's
first request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Tone(StrEnum):
    REQUEST = "request"
    ANSWER = "answer"
    KNOWS = "knows"
    """From here on, a side knows the outcome."""
    WRONG = "wrong"
    """An error, or what did not happen."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A client, or a broker in one role. ``title`` is a name, ``subtitle`` the role."""

    title: str
    subtitle: str


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow from one lane to another, by their positions. ``at`` None: it has not happened."""

    at: float | None
    source: int
    target: int
    label: str
    tone: Tone


@dataclass(frozen=True, slots=True)
class Bar:
    """The last stable offset is held at a leader, from one row to another; ``is_released``: a reader shows that it ends
    there, for all of the leader's partitions; else it may have ended before."""

    lane: int
    first: int
    last: int
    is_released: bool


@dataclass(frozen=True, slots=True)
class Knowledge:
    """When a side knows the outcome: not before ``earliest``, and not after ``latest``; None: not seen."""

    side: str
    who: str
    what: str
    earliest: float | None
    latest: float | None
    words: str


@dataclass(frozen=True, slots=True)
class Diagram:
    """``begun_at``: seconds since the epoch. ``outcome``: what the producer learnt."""

    transactional_id: str
    producer_id: int | None
    producer_epoch: int | None
    outcome: str
    begun_at: float
    verdict: str
    lanes: tuple[Lane, ...]
    rows: tuple[Arrow, ...]
    bars: tuple[Bar, ...]
    moments: tuple[Knowledge, ...]
    remarks: tuple[str, ...]
