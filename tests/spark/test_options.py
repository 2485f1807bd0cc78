import pytest

from einmal.spark.options import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    MAX_OFFSETS_PER_TRIGGER,
    OptionError,
    Times,
    sink_options,
    source_options,
    write_options,
)
from einmal.types import TopicPartition

SOURCE = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "a, b"}
SINK = {"kafka.bootstrap.servers": "127.0.0.1:9092", "checkpointLocation": "/c", "transactional.id": "t"}


def test_a_stream_reads_committed_records_from_the_latest_offset_in_bounded_batches() -> None:
    options = source_options(SOURCE, streaming=True)
    assert options.topics == ("a", "b")
    assert options.starting == "latest"
    assert options.isolation == "read_committed"
    assert options.max_offsets_per_trigger == MAX_OFFSETS_PER_TRIGGER
    assert options.fail_on_data_loss


def test_a_batch_query_reads_from_the_earliest_offset() -> None:
    assert source_options(SOURCE, streaming=False).starting == "earliest"


def test_names_are_matched_without_case_because_spark_lowers_them() -> None:
    options = source_options(
        SOURCE | {"startingoffsets": '{"a":{"0":23,"1":-2}}', "MAXOFFSETSPERTRIGGER": "5", "includeheaders": "true"},
        streaming=True,
    )
    assert options.starting == {"a": {0: 23, 1: -2}}
    assert options.max_offsets_per_trigger == 5
    assert options.include_headers


def test_a_starting_timestamp_wins_over_starting_offsets() -> None:
    options = source_options(SOURCE | {"startingTimestamp": "5", "startingOffsets": "earliest"}, streaming=True)
    assert options.starting == Times(5)


def test_times_may_be_given_for_each_partition() -> None:
    given = SOURCE | {"startingOffsetsByTimestamp": '{"t":{"0":5}}', "endingTimestamp": "9", "endingOffsets": "latest"}
    options = source_options(given, streaming=False)
    assert (options.starting, options.ending) == (Times({"t": {0: 5}}), Times(9))


def test_assign_names_partitions() -> None:
    options = source_options({"kafka.bootstrap.servers": "h:1", "assign": '{"t":[1,0]}'}, streaming=True)
    assert options.assigned == (TopicPartition("t", 0), TopicPartition("t", 1))


def test_kafka_settings_are_passed_on_without_their_prefix() -> None:
    options = source_options(SOURCE | {"kafka.isolation.level": "read_uncommitted"}, streaming=True)
    assert options.isolation == "read_uncommitted"
    assert options.client["bootstrap.servers"] == "127.0.0.1:9092"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"subscribe": "a"}, '"kafka.bootstrap.servers" is missing'),
        ({"kafka.bootstrap.servers": "h:1"}, 'one of "subscribe"'),
        (SOURCE | {"assign": "{}"}, 'one of "subscribe"'),
        (SOURCE | {"startingOffset": "earliest"}, 'did you mean "startingOffsets"'),
        (SOURCE | {"startingOffsets": "now"}, "earliest or latest"),
        (SOURCE | {"startingOffsets": '{"a":3}'}, "earliest or latest"),
        (SOURCE | {"endingOffsets": "latest"}, "a stream has no end"),
        (SOURCE | {"endingTimestamp": "1"}, "a stream has no end"),
        (SOURCE | {"startingOffsetsByTimestamp": "5"}, "JSON of times in ms"),
        (SOURCE | {"maxOffsetsPerTrigger": "0"}, "at least 1"),
        (SOURCE | {"failOnDataLoss": "maybe"}, "true or false"),
        ({"kafka.bootstrap.servers": "h:1", "subscribePattern": "("}, "regular expression"),
        ({"kafka.bootstrap.servers": "h:1", "assign": "[1]"}, "JSON such as"),
    ],
)
def test_a_source_option_that_cannot_be_is_refused_by_name(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint.replace("(", r"\(")):
        source_options(given, streaming=True)


def test_a_sink_is_exactly_once_by_default() -> None:
    options = sink_options(SINK | {"topic": "out", "kafka.compression.type": "zstd"})
    assert options.guarantee == EXACTLY_ONCE
    assert options.transactional_id == "t"
    assert options.group_id == "t"
    assert options.client["compression.type"] == "zstd"


def test_the_transactional_id_may_have_kafkas_prefix() -> None:
    given = {"kafka.transactional.id": "x", "kafka.bootstrap.servers": "h:1", "checkpointLocation": "/c"}
    options = sink_options(given)
    assert options.transactional_id == "x"
    assert "transactional.id" not in options.client


def test_at_least_once_needs_no_transactional_id() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "checkpointLocation": "/c", "processing.guarantee": AT_LEAST_ONCE}
    assert sink_options(given).transactional_id is None


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({name: SINK[name] for name in SINK if name != "transactional.id"}, '"transactional.id" is missing'),
        ({name: SINK[name] for name in SINK if name != "checkpointLocation"}, '"checkpointLocation" is missing'),
        (SINK | {"processing.guarantee": "exactly_once"}, "has been retired"),
        (SINK | {"processing.guarantee": "twice"}, "exactly_once_v2, at_least_once, at_most_once"),
        (SINK | {"topics": "x"}, 'did you mean "topic"'),
    ],
)
def test_a_sink_option_that_cannot_be_is_refused_by_name(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        sink_options(given)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"transactional.id": "t"}, '"txnVersion" is missing'),
        ({"txnVersion": "1"}, '"transactional.id" is missing'),
        ({"transactional.id": "t", "txnVersion": "-1"}, "at least 0"),
        ({"checkpointLocation": "/c"}, "is of a stream"),
        ({"txnAppId": "t"}, 'unknown option "txnAppId"'),
    ],
)
def test_a_batch_has_a_name_and_a_number_or_neither(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        write_options({"kafka.bootstrap.servers": "h:1"} | given, lambda: "new")


def test_a_batch_without_a_name_gets_one() -> None:
    options = write_options({"kafka.bootstrap.servers": "h:1"}, lambda: "new")
    assert (options.transactional_id, options.version) == ("new", None)
    named = write_options(
        {"kafka.bootstrap.servers": "h:1", "kafka.transactional.id": "t", "txnVersion": 0}, lambda: ""
    )
    assert (named.transactional_id, named.version) == ("t", 0)
