"""Where the dead letters of a query go: to its topics, or to topics of the source's cluster beside other sinks.

Those of rows that sinks reject have a commit point of their own in the source's cluster: they are known only when the
sinks have committed, which is after the topics of the query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from einmal.options.client import PRODUCER_NAMES
from einmal.options.sink import QueryOptions, SinkOptions
from einmal.options.source import source_options
from einmal.options.values import OptionError, client_settings
from einmal.schemas.settings import TOLERANCE
from einmal.spark.decoding.decode import DecodedSource
from einmal.spark.decoding.rows import LETTER_SCHEMA
from einmal.spark.sinks.kafka.sink import KafkaFrameSink
from einmal.spark.sinks.part import Part, in_one_column
from einmal.spark.sinks.rejected_letters import RejectedLetters, RejectingSink
from einmal.spark.sinks.two_phase import FrameTwoPhaseSink
from einmal.spark.source.source import KafkaDataSource

TOPICS_COLUMN: Final = "einmal_topics"
"""The struct column of rows for topics, in a query that has other sinks, too."""
_ROWS_COLUMN: Final = "einmal_rows"
_LETTERS: Final = f"struct<{', '.join(column.strip().replace(' ', ':', 1) for column in LETTER_SCHEMA.split(', '))}>"

Decoded = Sequence[tuple[int, DecodedSource]]


class LetterPart(NamedTuple):
    """``parts``: of the query with dead letters. ``column``: the struct column that they have to be in, if any.
    ``shape``: from the query's rows to those beside which dead letters can be."""

    parts: tuple[Part, ...]
    column: str | None
    shape: Callable[[DataFrame], DataFrame]


def letter_topics(decoded: Decoded) -> dict[int, str]:
    """The topics that dead letters of bad rows go to, by the number of their source."""
    topics = {number: source.settings.topic for number, source in decoded if source.settings.tolerates}
    return {number: topic for number, topic in topics.items() if topic is not None}


def with_letters(options: QueryOptions, parts: tuple[Part, ...], decoded: Decoded) -> LetterPart:
    """How the rows of a query get beside them a part that dead letters can go to. Raises OptionError."""
    if len(parts) == 1 and isinstance(parts[0].sink, KafkaFrameSink):
        assert isinstance(options, SinkOptions)
        # Each row names its topic, as dead letters do.
        topics = Part(KafkaFrameSink(options.client, None, options.group_id))
        return LetterPart((topics,), None, partial(_named, options.topic))
    if any(_has_topics(part) for part in parts):
        return LetterPart(parts, TOPICS_COLUMN, _unchanged)
    tolerant = [source.options for _, source in decoded if source.settings.tolerates and source.options is not None]
    letters = Part(KafkaFrameSink(_client(options.transactional_id, tolerant)), TOPICS_COLUMN)
    if len(parts) > 1:
        return LetterPart((letters, *parts), TOPICS_COLUMN, _beside_letters)
    rows = Part(parts[0].sink, _ROWS_COLUMN)
    return LetterPart((letters, rows), TOPICS_COLUMN, lambda frame: _beside_letters(in_one_column(frame, _ROWS_COLUMN)))


def _has_topics(part: Part) -> bool:
    return part.column == TOPICS_COLUMN or isinstance(part.sink, FrameTwoPhaseSink)


def _unchanged(frame: DataFrame) -> DataFrame:
    return frame


def _named(topic: str | None, frame: DataFrame) -> DataFrame:
    return frame if topic is None else frame.withColumn("topic", F.lit(topic))


def _beside_letters(frame: DataFrame) -> DataFrame:
    return frame.withColumn(TOPICS_COLUMN, F.lit(None).cast(_LETTERS))


def _client(name: str | None, sources: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """As that of the first of the sources with these options: dead letters stay in their cluster. Raises
    OptionError."""
    clients = [
        {setting: value for setting, value in client_settings(options).items() if setting in PRODUCER_NAMES}
        for options in sources
    ]
    if len({client.get("bootstrap.servers") for client in clients}) != 1:
        raise OptionError(
            "the sources of dead letters (errors.tolerance=all) are in several clusters, and dead letters are one "
            "transaction in one"
        )
    return clients[0] | {"client.id": name or "einmal-dead-letters"}


def rejected_letters(
    options: QueryOptions, parts: Sequence[Part], sources: Sequence[tuple[str, Mapping[str, str]]]
) -> RejectedLetters | None:
    """Where the dead letters go of rows that sinks reject; None where no sink tolerates them. ``sources``: format and
    options of each, in the order of its positions. Raises OptionError."""
    name = options.transactional_id
    sinks = {
        number: RejectingSink(part.name or str(name), errors, _class_of(part))
        for number, part in enumerate(parts)
        if (errors := part.sink.errors).tolerates
    }
    if not sinks:
        return None
    ours = {number: given for number, (kind, given) in enumerate(sources) if kind == KafkaDataSource.name()}
    if not ours:
        raise OptionError(
            f"{TOLERANCE}=all of a sink reads the records of rejected rows again, from einmal's source\n"
            f'hint: spark.readStream.format("einmal"), or leave {TOLERANCE} out'
        )
    own_name = f"{name}/rejected"
    return RejectedLetters(
        sink=KafkaFrameSink(_client(own_name, list(ours.values()))),
        name=own_name,
        sources={number: source_options(given, streaming=True) for number, given in ours.items()},
        sinks=sinks,
    )


def _class_of(part: Part) -> str:
    sink = part.sink
    if isinstance(sink, FrameTwoPhaseSink):
        sink = sink.parts[1].sink
    return f"{type(sink).__module__}.{type(sink).__qualname__}"
