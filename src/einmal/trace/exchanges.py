"""``Exchange``: the meaning of a request and its answer to a transaction, made of two frames, without I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from einmal.chaos.proxy.frames import AnswerFrame, RequestFrame
from einmal.wire.control_batch import decode_marker
from einmal.wire.errors import WireError
from einmal.wire.record_batch import decode_records, iter_headers

WRITES: Final = frozenset(("AddPartitionsToTxn", "AddOffsetsToTxn", "Produce", "TxnOffsetCommit"))
"""The requests that open a transaction or add to it."""
READ_COMMITTED: Final = 1


@dataclass(frozen=True, slots=True)
class SeenMarker:
    """The marker of a producer, as a reader finds it in the log."""

    producer_id: int
    offset: int
    committed: bool


@dataclass(frozen=True, slots=True)
class ExchangePart:
    """The part of an exchange that concerns one partition. Offsets and the error's name are those of the answer."""

    topic: str
    partition: int
    records: int = 0
    first_offset: int | None = None
    last_stable_offset: int | None = None
    markers: tuple[SeenMarker, ...] = ()
    error: str | None = None

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def last_offset(self) -> int | None:
        """The offset of the last record of a Produce."""
        return None if self.first_offset is None else self.first_offset + max(1, self.records) - 1


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its answer. Times are seconds since the epoch; ``answered_at`` None: no answer was seen.

    ``broker`` None: the proxy did not know its id. ``software``: the client's name and version, if it has named them.
    ``producer_id`` and ``producer_epoch``: of the request, of InitProducerId the answer's.
    """

    api: str
    sent_at: float
    answered_at: float | None
    broker: int | None
    client_id: str
    software: str = ""
    transactional_id: str | None = None
    producer_id: int | None = None
    producer_epoch: int | None = None
    committed: bool | None = None
    group: str | None = None
    parts: tuple[ExchangePart, ...] = ()
    error: str | None = None

    @property
    def is_done(self) -> bool:
        """Whether the answer has no error, for all of its partitions."""
        return (
            self.answered_at is not None and self.error is None and not any(partition.error for partition in self.parts)
        )


@dataclass(frozen=True, slots=True)
class Names:
    """Names learnt from other frames: topics by their id, and software by connection."""

    topics: Mapping[UUID, str]
    software: Mapping[int, str]

    def topic(self, fields: Any) -> str:
        name = getattr(fields, "name", None) or getattr(fields, "topic", None)
        return str(name or self.topics.get(fields.topic_id, fields.topic_id))


def exchange(
    request: RequestFrame, sent_at: float, answer: AnswerFrame | None, answered_at: float | None, names: Names
) -> Exchange | None:
    """None for what no transaction is concerned with. Raises WireError."""
    make = _MAKERS.get(request.api)
    if make is None:
        return None
    fields = make(request.message, None if answer is None else answer.message, names)
    if fields is None:
        return None
    error = None if answer is None else _error(answer.message)
    software = names.software.get(request.connection, "")
    seen = (request.api, sent_at, answered_at, request.broker, request.header.client_id or "", software)
    return Exchange(*seen, **{"error": error, **fields})


def _error(fields: Any) -> str | None:
    code = getattr(fields, "error_code", None)
    return None if not code else str(code.name).upper()


def _init(request: Any, answer: Any, _names: Names) -> dict[str, Any] | None:
    if not request.transactional_id:
        return None
    identity = {} if answer is None or answer.error_code else _identity(answer)
    return {"transactional_id": request.transactional_id, **identity}


def _identity(fields: Any) -> dict[str, int]:
    return {"producer_id": fields.producer_id, "producer_epoch": fields.producer_epoch}


def _add_partitions(request: Any, answer: Any, _names: Names) -> dict[str, Any] | None:
    # From version 4 on, it is a broker that asks, for several transactions.
    if not getattr(request, "v3_and_below_transactional_id", None):
        return None
    errors = {
        (topic.name, result.partition_index): _named(result.partition_error_code)
        for topic in (answer.results_by_topic_v3_and_below if answer is not None else ())
        for result in topic.results_by_partition
    }
    return {
        "transactional_id": request.v3_and_below_transactional_id,
        "producer_id": request.v3_and_below_producer_id,
        "producer_epoch": request.v3_and_below_producer_epoch,
        "parts": tuple(
            ExchangePart(topic.name, partition, error=errors.get((topic.name, partition)))
            for topic in request.v3_and_below_topics
            for partition in topic.partitions
        ),
    }


def _named(code: Any) -> str | None:
    return str(code.name).upper() if code else None


def _add_offsets(request: Any, _answer: Any, _names: Names) -> dict[str, Any]:
    return {"transactional_id": request.transactional_id, "group": request.group_id, **_identity(request)}


def _offsets(request: Any, answer: Any, names: Names) -> dict[str, Any]:
    errors = {
        (names.topic(topic), partition.partition_index): _named(partition.error_code)
        for topic in (answer.topics if answer is not None else ())
        for partition in topic.partitions
    }
    return {
        "transactional_id": request.transactional_id,
        "group": request.group_id,
        **_identity(request),
        "parts": tuple(
            ExchangePart(name, partition.partition_index, error=errors.get((name, partition.partition_index)))
            for topic in request.topics
            for name in (names.topic(topic),)
            for partition in topic.partitions
        ),
    }


def _produce(request: Any, answer: Any, names: Names) -> dict[str, Any] | None:
    if not request.transactional_id:
        return None
    written = {
        (names.topic(topic), response.index): response
        for topic in (answer.responses if answer is not None else ())
        for response in topic.partition_responses
    }
    parts, identity = [], {}
    for topic in request.topic_data:
        for partition in topic.partition_data:
            name = names.topic(topic)
            headers = [header for _, header in iter_headers(partition.records or b"")]
            for header in headers:
                identity = _identity(header)
            done = written.get((name, partition.index))
            first = done.base_offset if done is not None and not done.error_code else None
            error = None if done is None else _named(done.error_code)
            parts.append(
                ExchangePart(name, partition.index, sum(header.record_count for header in headers), first, error=error)
            )
    return {"transactional_id": request.transactional_id, **identity, "parts": tuple(parts)}


def _end(request: Any, _answer: Any, _names: Names) -> dict[str, Any]:
    return {"transactional_id": request.transactional_id, "committed": request.committed, **_identity(request)}


def _fetch(request: Any, answer: Any, names: Names) -> dict[str, Any] | None:
    # An answer in a fetch session names only the partitions with news.
    if request.isolation_level != READ_COMMITTED or answer is None or not answer.responses:
        return None
    return {
        "parts": tuple(
            ExchangePart(
                names.topic(topic),
                partition.partition_index,
                last_stable_offset=None if partition.error_code else partition.last_stable_offset,
                markers=tuple(_markers(partition.records or b"")),
                error=_named(partition.error_code),
            )
            for topic in answer.responses
            for partition in topic.partitions
        )
    }


def _markers(records: bytes) -> Iterator[SeenMarker]:
    for position, header in iter_headers(records):
        if header.is_control and header.is_transactional:
            (record,) = decode_records(records, position, header)
            yield SeenMarker(header.producer_id, header.base_offset, decode_marker(record).committed)


def topics_of(answer: AnswerFrame) -> dict[UUID, str]:
    """The names in an answer to Metadata, by id."""
    try:
        return {topic.topic_id: topic.name for topic in answer.message.topics if getattr(topic, "topic_id", None)}
    except WireError:
        return {}


def software_of(request: RequestFrame) -> str:
    """The client's name and version in its ApiVersions."""
    try:
        named = request.message
    except WireError:
        return ""
    words = (getattr(named, "client_software_name", ""), getattr(named, "client_software_version", ""))
    return " ".join(word for word in words if word)


_MAKERS: Final = {
    "InitProducerId": _init,
    "AddPartitionsToTxn": _add_partitions,
    "AddOffsetsToTxn": _add_offsets,
    "TxnOffsetCommit": _offsets,
    "Produce": _produce,
    "EndTxn": _end,
    "Fetch": _fetch,
}
