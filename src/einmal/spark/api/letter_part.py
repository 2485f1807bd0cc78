"""Where the dead letters of a query go: to its topics, or to topics of the source's cluster beside other targets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from einmal.client.config import ProducerSettings, dotted
from einmal.spark.decoding.decode import DecodedSource
from einmal.spark.decoding.rows import LETTER_SCHEMA
from einmal.spark.options import OptionError, QueryOptions, SinkOptions, client_settings
from einmal.spark.targets.kafka.destination import KafkaDestination
from einmal.spark.targets.part import Part

TOPICS_COLUMN: Final = "einmal_topics"
"""The struct column of rows for topics, in a query that has other targets, too."""
_ROWS_COLUMN: Final = "einmal_rows"
_LETTERS: Final = f"struct<{', '.join(each.strip().replace(' ', ':', 1) for each in LETTER_SCHEMA.split(', '))}>"

Decoded = Sequence[tuple[int, DecodedSource]]


def topics_with_letters(options: QueryOptions, decoded: Decoded) -> list[str]:
    """The topics that rows name now, for the preflight."""
    named = [each.settings.topic for _, each in decoded]
    named += [options.topic] if isinstance(options, SinkOptions) else []
    return list(dict.fromkeys(each for each in named if each is not None))


def with_letters(
    frame: DataFrame, options: QueryOptions, parts: tuple[Part, ...], decoded: Decoded
) -> tuple[DataFrame, tuple[Part, ...], str | None]:
    """The query with a part that dead letters can go to, and the struct column that they have to be in, if any.

    Raises OptionError.
    """
    if len(parts) == 1 and isinstance(parts[0].destination, KafkaDestination):
        assert isinstance(options, SinkOptions)
        # Each row names its topic, as dead letters do.
        named = frame if options.topic is None else frame.withColumn("topic", F.lit(options.topic))
        return named, (Part(KafkaDestination(options.client, None, options.group_id)),), None
    if TOPICS_COLUMN in frame.columns:
        return frame, parts, TOPICS_COLUMN
    if len(parts) == 1:
        rows = F.struct(*(F.col(f"`{each}`") for each in frame.columns))
        frame, parts = frame.select(rows.alias(_ROWS_COLUMN)), (Part(parts[0].destination, _ROWS_COLUMN),)
    letters = Part(KafkaDestination(_client(options, decoded)), TOPICS_COLUMN)
    return frame.withColumn(TOPICS_COLUMN, F.lit(None).cast(_LETTERS)), (letters, *parts), TOPICS_COLUMN


def _client(options: QueryOptions, decoded: Decoded) -> dict[str, str]:
    """As the source's: dead letters stay in its cluster."""
    names = {dotted(field.name) for field in dataclasses.fields(ProducerSettings)}
    found = {
        tuple(sorted((name, value) for name, value in client_settings(source.options).items() if name in names))
        for _, source in decoded
        if source.settings.tolerates and source.options is not None
    }
    if len({dict(each).get("bootstrap.servers") for each in found}) != 1:
        raise OptionError(
            "the sources with errors.tolerance=all are in several clusters, and dead letters are one transaction in one"
        )
    client = dict(next(iter(found)))
    return client | {"client.id": options.transactional_id or "einmal-dead-letters"}
