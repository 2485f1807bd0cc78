import dataclasses

import pytest

from einmal.client.config import ConsumerSettings, ProducerSettings, dotted
from einmal.options.sink import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    TWO_PHASE_COMMIT,
    query_without_effect,
    sink_options,
    write_options,
)
from einmal.options.source import MAX_OFFSETS_PER_TRIGGER, Times, reads_topic, source_options
from einmal.options.values import OptionError
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


def test_a_range_does_not_end_at_earliest() -> None:
    source_options(SOURCE | {"endingOffsets": '{"a":{"0":-1}}'}, streaming=False)
    with pytest.raises(OptionError, match="at least -1.*\n.*-1 stands for latest"):
        source_options(SOURCE | {"endingOffsets": '{"a":{"0":-2}}'}, streaming=False)


def test_a_starting_timestamp_wins_over_starting_offsets() -> None:
    options = source_options(SOURCE | {"startingTimestamp": "5", "startingOffsets": "earliest"}, streaming=True)
    assert options.starting == Times(5)


def test_each_partition_may_have_a_timestamp() -> None:
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
        ({"kafka.bootstrap.servers": "h:1", "assign": "{}"}, '"assign" selects nothing'),
        ({"kafka.bootstrap.servers": "h:1", "assign": '{"t":[]}'}, '"assign" selects nothing'),
        ({"kafka.bootstrap.servers": "h:1", "assign": '{"t":"12"}'}, "JSON such as"),
        ({"kafka.bootstrap.servers": "h:1", "assign": '{"t":[0.9]}'}, "JSON such as"),
        ({"kafka.bootstrap.servers": "h:1", "assign": '{"t":[true]}'}, "JSON such as"),
        (SOURCE | {"startingOffsets": '{"a":{"0":23.9}}'}, "earliest or latest"),
        (SOURCE | {"startingOffsets": '{"a":{"0":Infinity}}'}, "earliest or latest"),
        (SOURCE | {"startingOffsets": '{"a":{"0":true}}'}, "earliest or latest"),
        (SOURCE | {"startingOffsets": '{"a":{"0_1":5}}'}, "earliest or latest"),
        (SOURCE | {"startingOffsets": '{"a":{"0":1,"0":5}}'}, "'0' is there twice in"),
        ({"kafka.bootstrap.servers": "h:1", "assign": '{"t":[0],"t":[1]}'}, "'t' is there twice in"),
        (SOURCE | {"startingOffsetsByTimestamp": '{"a":{"0":1e400}}'}, "JSON of times in ms"),
        (SOURCE | {"startingOffsets": '{"a":{"0":-3}}'}, "at least -2.*\n.*-2 stands for earliest"),
        (SOURCE | {"startingOffsetsByTimestamp": '{"a":{"0":-1}}'}, "JSON of times in ms, with numbers of at least 0"),
        (SOURCE | {"provider": "einmal"}, "CREATE TEMPORARY VIEW"),
        (SOURCE | {"startingOffsets": ""}, '"startingOffsets" is empty'),
        (SOURCE | {"startingOffsetsByTimestampStrategy": " "}, '"startingOffsetsByTimestampStrategy" is empty'),
        ({"kafka.bootstrap.servers": "h:1", "subscribe": " , "}, '"subscribe" selects nothing'),
        ({"kafka.bootstrap.servers": "h:1", "subscribe": ""}, "selects the topics; set: none"),
        (SOURCE | {"minPartitions": "1" * 5000}, '"minPartitions" is a whole number'),
        (SOURCE | {"maxTriggerDelay": "1" * 5000}, '"maxTriggerDelay" is a time'),
    ],
)
def test_a_source_option_that_cannot_be_is_refused_by_name(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint.replace("(", r"\(")):
        source_options(given, streaming=True)


@pytest.mark.parametrize("name", ["kafka.client.dns.lookup", "fetchOffset.numRetries", "kafkaConsumer.pollTimeoutMs"])
def test_a_source_accepts_what_has_no_effect_and_names_it(name: str) -> None:
    assert source_options(SOURCE | {name.lower(): "1"}, streaming=True).without_effect == (name,)


def test_settings_of_the_other_side_have_no_effect() -> None:
    options = source_options(SOURCE | {"kafka.linger.ms": "5"}, streaming=True)
    assert options.without_effect == ("kafka.linger.ms",)
    assert "linger.ms" not in options.client
    assert sink_options(SINK | {"kafka.isolation.level": "read_committed"}).without_effect == ("kafka.isolation.level",)


_NAMES = {
    kind: {dotted(field.name) for field in dataclasses.fields(kind)} - {"bootstrap.servers", "group.id"}
    for kind in (ProducerSettings, ConsumerSettings)
}
_PRODUCER, _CONSUMER = _NAMES[ProducerSettings], _NAMES[ConsumerSettings]
_OF_THE_QUERY = {"transactional.id", "auto.offset.reset", "enable.auto.commit"}
"""Refused as settings of the client, or options of the query."""
_OF_NO_SIDE = {"linger.ms", "metadata.max.idle.ms"}
"""Tasks have all rows of a batch, and do not outlive it."""


def _valid(name: str) -> str:
    """A value that every check accepts: the default as text, or a text."""
    for kind in (ProducerSettings, ConsumerSettings):
        for field in dataclasses.fields(kind):
            if dotted(field.name) == name and field.default not in (None, dataclasses.MISSING):
                return str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
    return "true" if name == "enable.idempotence" else "x"


def _reported(name: str, *sides: str, has_letters: bool = False) -> bool:
    option = {f"kafka.{name}": _valid(name)}
    sink = sink_options(SINK | (option if "sink" in sides else {}))
    source = source_options(SOURCE | (option if "source" in sides else {}), streaming=True)
    return query_without_effect(sink, [source], has_letters=has_letters) == (f"kafka.{name}",)


@pytest.mark.parametrize("name", sorted((_PRODUCER ^ _CONSUMER) - _OF_THE_QUERY - _OF_NO_SIDE))
def test_an_option_is_reported_as_without_effect_where_no_side_of_the_query_uses_it(name: str) -> None:
    own, other = ("sink", "source") if name in _PRODUCER else ("source", "sink")
    assert not _reported(name, own)
    assert _reported(name, other)
    assert not _reported(name, own, other)
    # Dead letters are written with the producer's settings of the sources.
    assert _reported(name, other, has_letters=True) == (name in _CONSUMER)


def test_a_small_batch_may_be_held_back_for_a_time() -> None:
    options = source_options(SOURCE | {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "90s"}, streaming=True)
    assert (options.min_offsets_per_trigger, options.max_trigger_delay_ms) == (5, 90_000)
    assert source_options(SOURCE, streaming=True).max_trigger_delay_ms == 900_000


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"maxTriggerDelay": "soon"}, "15m"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "larger than maxOffsetsPerTrigger"),
        ({"startingOffsetsByTimestampStrategy": "oldest"}, "latest or error"),
        ({"kafka.auto.offset.reset": "earliest"}, "startingOffsets"),
        ({"kafka.key.deserializer": "x"}, "CAST"),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "x"}, "keytool -list -rfc"),
        ({"kafka.security.protocol": "SASL_SSL"}, "needs sasl.mechanism"),
        ({"kafka.security.providers": "x"}, "classes of Java's client do not run here"),
        ({"kafka.sasl.oauthbearer.token.provider": "x"}, "a function cannot be an option"),
        ({"kafka.fetch.max.byte": "1"}, "did you mean 'fetch.max.bytes'"),
        ({"kafka.default.api.timeout.ms": "soon"}, "a whole number"),
    ],
)
def test_a_source_option_without_a_meaning_here_is_refused_with_a_hint(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        source_options(SOURCE | given, streaming=True)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"kafka.compression.type": "LZ5"}, "compression.type cannot be 'LZ5'\nhint: choose one of none, gzip"),
        ({"kafka.batch.size": "big"}, "a whole number"),
        ({"kafka.partitioner.class": "x"}, 'a column "partition"'),
        ({"kafka.acks": "0"}, "leave kafka.acks out"),
        ({"kafka.enable.idempotence": "false"}, "leave kafka.enable.idempotence out"),
        ({"kafka.acks": "1", "processing.guarantee": AT_LEAST_ONCE}, "leave kafka.acks out"),
    ],
)
def test_a_sinks_client_setting_that_cannot_be_is_refused_before_the_start(
    given: dict[str, str], complaint: str
) -> None:
    with pytest.raises(OptionError, match=complaint) as raised:
        sink_options(SINK | given)
    assert "duplicates" not in str(raised.value)
    if AT_LEAST_ONCE not in given.values():
        with pytest.raises(OptionError, match=complaint):
            write_options({"kafka.bootstrap.servers": "h:1"} | given, lambda: "new")


def test_a_sink_accepts_what_has_no_effect_and_names_it() -> None:
    given = {"includeHeaders": "true", "kafka.retries": "5", "kafka.acks": "all", "kafka.group.id": "g"}
    given |= {"kafka.linger.ms": "20"}
    options = sink_options(SINK | given)
    assert options.without_effect == ("kafka.retries", "kafka.linger.ms", "includeHeaders")
    assert "linger.ms" not in options.client
    assert options.group_id == "g"


def test_a_sink_is_exactly_once_by_default() -> None:
    options = sink_options(SINK | {"topic": "out", "kafka.compression.type": "zstd"})
    assert options.guarantee == EXACTLY_ONCE
    assert options.transactional_id == "t"
    assert options.group_id == "t"
    assert options.client["compression.type"] == "zstd"


@pytest.mark.parametrize("text", ["READ_COMMITTED", " read_committed ", "Read_Committed"])
def test_a_choice_is_one_value_however_it_is_written(text: str) -> None:
    assert source_options(SOURCE | {"kafka.isolation.level": text}, streaming=True).isolation == "read_committed"


@pytest.mark.parametrize("text", ["true", "True", "TRUE", "1", "yes"])
def test_a_two_phase_commit_needs_one_database_however_it_is_asked_for(text: str) -> None:
    two_phase = {f"kafka.{TWO_PHASE_COMMIT}": text, "kafka.compression.type": " ZSTD "}
    client = sink_options(SINK | two_phase, others=1).client
    assert (client[TWO_PHASE_COMMIT], client["compression.type"]) == ("true", "zstd")
    for databases in (0, 2):
        with pytest.raises(OptionError, match=f"{databases} databases"):
            sink_options(SINK | two_phase, others=databases)
    with pytest.raises(OptionError, match="0 databases"):
        write_options(
            {"kafka.bootstrap.servers": "h:1", "transactional.id": "t", "txnVersion": "1", **two_phase}, lambda: "new"
        )


def test_a_secret_stays_as_it_is() -> None:
    secret = {"kafka.security.protocol": "sasl_plaintext", "kafka.sasl.mechanism": "plain"}
    secret |= {"kafka.sasl.username": "u", "kafka.sasl.password": " True "}
    client = source_options(SOURCE | secret, streaming=True).client
    assert (client["security.protocol"], client["sasl.password"]) == ("SASL_PLAINTEXT", " True ")


def test_a_sinks_own_options_may_have_underscores() -> None:
    given = {name: value for name, value in SINK.items() if name != "transactional.id"}
    options = sink_options(given | {"transactional_id": "t", "processing_guarantee": EXACTLY_ONCE})
    assert (options.transactional_id, options.guarantee) == ("t", EXACTLY_ONCE)


def test_the_transactional_id_may_have_kafkas_prefix() -> None:
    given = {"kafka.transactional.id": "x", "kafka.bootstrap.servers": "h:1", "checkpointLocation": "/c"}
    options = sink_options(given)
    assert options.transactional_id == "x"
    assert "transactional.id" not in options.client


def test_a_client_setting_that_is_none_is_not_set() -> None:
    """As of ``os.environ.get``: it is no password that reads None."""
    none = dict.fromkeys(("kafka.sasl.password", "kafka.client.id"))
    assert sink_options(SINK | none).client == sink_options(SINK).client
    assert source_options(SOURCE | none, streaming=True).client == source_options(SOURCE, streaming=True).client


def test_at_least_once_needs_no_transactional_id() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "checkpointLocation": "/c", "processing.guarantee": AT_LEAST_ONCE}
    assert sink_options(given).transactional_id is None


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({name: SINK[name] for name in SINK if name != "transactional.id"}, '"transactional.id" is missing'),
        ({name: SINK[name] for name in SINK if name != "checkpointLocation"}, '"checkpointLocation" is missing'),
        (SINK | {"processing.guarantee": "exactly_once"}, "has been retired"),
        (SINK | {"processing_guarantee": "exactly_once_beta"}, "has been retired"),
        (SINK | {"transactional_id": "x"}, '"transactional.id" is set twice'),
        (SINK | {"kafka.transactional.id": "x"}, '"kafka.transactional.id" are one, and have two values'),
        (SINK | {"processing.guarantee": "twice"}, "exactly_once_v2, at_least_once, at_most_once"),
        (SINK | {"topics": "x"}, 'did you mean "topic"'),
        (SINK | {"topic": ""}, '"topic" is empty'),
        (SINK | {"einmal.adopt": ""}, '"einmal.adopt" is empty'),
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
        ({"transactional.id": "", "txnVersion": "1"}, '"transactional.id" is empty'),
        ({"topic": " "}, '"topic" is empty'),
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


def test_javas_tuning_of_tls_and_sasl_has_no_effect() -> None:
    options = source_options(SOURCE | {"kafka.ssl.protocol": "TLSv1.3"}, streaming=True)
    assert options.without_effect == ("kafka.ssl.protocol",)


def test_no_text_of_options_shows_a_secret() -> None:
    secured = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "alice",
        "kafka.sasl.password": "canary-5",
    }
    for options in (source_options(SOURCE | secured, streaming=True), sink_options(SINK | secured)):
        assert "canary-5" not in f"{options} {options.client}"
        assert options.client["sasl.password"] == "canary-5"


@pytest.mark.parametrize(
    ("selection", "topic", "expected"),
    [
        ({"subscribe": "a, b"}, "b", True),
        ({"subscribe": "a, b"}, "c", False),
        ({"assign": '{"a": [0]}'}, "a", True),
        ({"subscribepattern": "a.*"}, "a-dlq", True),
        ({"subscribepattern": "a"}, "a-dlq", False),
        ({"subscribepattern": "", "assign": "", "subscribe": "a"}, "a", True),
        # Of Java's, for Spark's own source.
        ({"subscribepattern": r"\p{L}+"}, "a", False),
    ],
)
def test_a_source_reads_the_topics_that_it_selects_in_its_own_cluster(
    selection: dict[str, str], topic: str, expected: bool
) -> None:
    source = {"kafka.bootstrap.servers": "a:1, b:1"} | selection
    assert reads_topic(source, topic, "b:1,c:1") == expected
    assert not reads_topic(source, topic, "c:1")


@pytest.mark.parametrize("name", ["subscribe", "subscribePattern", "assign"])
def test_an_empty_value_that_has_the_meaning_of_the_default_is_accepted(name: str) -> None:
    selections = {"subscribe": "a", "subscribePattern": "a.*", "assign": '{"a": [0]}'}
    empty = {"subscribe": "", "subscribePattern": "", "assign": "", "groupIdPrefix": "", "includeHeaders": ""}
    given = {"kafka.bootstrap.servers": "h:1"} | empty | {name: selections[name]}
    found = source_options(given, streaming=True)
    assert (bool(found.topics), found.pattern is not None, bool(found.assigned)) == (
        name == "subscribe",
        name == "subscribePattern",
        name == "assign",
    )
    assert (found.client["client.id"], found.include_headers) == ("einmal-spark-source", False)
