"""What an attempt at a batch has reported, where the next one does not decode the rows again."""

from __future__ import annotations

import pytest
from pyspark.accumulators import Accumulator

from einmal.pipeline import events
from einmal.pipeline.dead_letters import ToleranceExceeded
from einmal.schemas.settings import decode_settings
from einmal.spark.decoding.bad_rows import BadRows, SchemaChanged, SchemaRegistered
from einmal.spark.decoding.decode import DecodedSource
from einmal.spark.decoding.reports import Reports, TaskReport
from einmal.spark.decoding.rows import Decoding


class NoOffsets:
    def offsets(self, batch_id: int) -> None:
        return None


def source(**limit: str) -> DecodedSource:
    settings = decode_settings(
        {"value.format": "avro", "schema.registry.url": "http://localhost", "errors.tolerance": "all"}
        | {"errors.deadletterqueue.topic.name": "bad"}
        | {f"errors.deadletterqueue.{name}": value for name, value in limit.items()}
    )
    decoding = Decoding(
        source="orders",
        fields={},
        columns={},
        contract=settings.contract,
        registry=None,
        rescues=False,
        tolerates=True,
        topic=settings.topic,
        context_headers=True,
    )
    return DecodedSource(decoding, settings, Accumulator(1, {}, Reports()), None)


def reported(found: DecodedSource) -> None:
    """Its good rows did not have the schema, its dead letters had: the row is in neither."""
    for report in (
        TaskReport("", "orders", None, unknown=frozenset({5})),
        TaskReport("", "orders", 0, known=frozenset({5})),
    ):
        found.reports.add({report: None})


def test_rows_that_were_kept_are_not_written_after_a_schema_was_registered_meanwhile() -> None:
    """Rows for several sinks are persisted: the second attempt at the batch reports nothing."""
    decoded = source()
    rows = BadRows([(0, decoded)], NoOffsets(), column="einmal_topics")
    reported(decoded)
    for _ in range(2):
        with pytest.raises(SchemaRegistered):
            rows.hear(events.OutputWritten(1))
        rows.hear(events.TransactionEnded(1, False))


def test_a_batch_that_was_read_by_two_schemas_of_one_id_is_aborted() -> None:
    decoded = source()
    rows = BadRows([(0, decoded)], NoOffsets())
    for report in (
        TaskReport("", "orders", None, digests=frozenset({(5, "old")})),
        TaskReport("", "orders", 0, digests=frozenset({(5, "new")})),
    ):
        decoded.reports.add({report: None})
    with pytest.raises(SchemaChanged, match=r"the schemas of ids \[5\](?s:.*)hint: restore"):
        rows.hear(events.OutputWritten(1))


def test_rows_that_are_decoded_again_are_written_when_all_tasks_know_the_schema() -> None:
    decoded = source()
    rows = BadRows([(0, decoded)], NoOffsets())
    reported(decoded)
    with pytest.raises(SchemaRegistered):
        rows.hear(events.OutputWritten(1))
    rows.hear(events.TransactionEnded(1, False))
    decoded.reports.add({TaskReport("", "orders", 0, known=frozenset({5})): None})
    assert rows.hear(events.OutputWritten(1)) == []


@pytest.mark.parametrize("bad_source", [0, 1])
def test_a_limit_holds_for_each_of_two_sources_of_one_name(bad_source: int) -> None:
    decoded = [source(limit="10%"), source(limit="10%")]
    rows = BadRows([*enumerate(decoded)], NoOffsets())
    counts = ((("VALUE_CONVERTER", "WrongType"), 900),)
    for number, found in enumerate(decoded):
        report = TaskReport("", "orders", 0, records=1_000, counts=counts if number == bad_source else ())
        found.reports.add({report: None})
    with pytest.raises(ToleranceExceeded, match="900 of 1,000 rows"):
        rows.hear(events.OutputWritten(1))


def test_the_dead_letters_of_two_sources_of_one_name_are_both_counted() -> None:
    decoded = [source(), source()]
    rows = BadRows([*enumerate(decoded)], NoOffsets())
    for number, found in enumerate(decoded):
        counts = ((("VALUE_CONVERTER", "WrongType"), number + 1),)
        found.reports.add({TaskReport("", "orders", 0, records=10, counts=counts): None})
    rows.hear(events.OutputWritten(1))
    written = rows.hear(events.BatchFinished(1, 10))
    assert [sum(event.counts.values()) for event in written if isinstance(event, events.DeadLettersWritten)] == [1, 2]
