"""Claims about what users of other clients type first: it works, or the error is a sentence with the right spelling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

import einmal.client
from einmal import client
from einmal.client import aio
from einmal.client.config import AdminSettings, ConsumerSettings, ProducerSettings, documentation, parse
from einmal.client.errors import ConfigError, LocalError
from einmal.client.habits import SETTINGS
from einmal.client.records import check_timeout, group_of, headers_of
from einmal.types import Header, TopicPartition

SERVERS = {"bootstrap.servers": "127.0.0.1:1"}
T0 = TopicPartition("t", 0)
LONE_SURROGATE = "caf\udce9"
"""As os.listdir() returns the names of files that are not UTF-8."""


@pytest.mark.parametrize("kind", [client.Consumer, client.Producer, client.Admin])
def test_a_text_in_place_of_settings_is_an_error_that_shows_settings(kind: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="settings are a mapping, not 'orders'"):
        kind("orders")


def test_a_topic_given_to_the_consumer_is_to_be_subscribed_to() -> None:
    with pytest.raises(ConfigError, match=r"then call subscribe\(\['orders'\]\)"):
        client.Consumer("orders", bootstrap_servers="127.0.0.1:1", group_id="g")  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize(
    ("settings", "kind", "expected"),
    [
        ({"value_serializer": str.encode}, ProducerSettings, r"json.dumps\(value\)"),
        ({"value_deserializer": bytes.decode}, ConsumerSettings, r"json.loads\(record.value\)"),
        ({"retries": 5}, ProducerSettings, "delivery.timeout.ms"),
        ({"api_version": (2, 5)}, ConsumerSettings, "negotiated"),
        ({"consumer_timeout_ms": 1_000}, ConsumerSettings, "empty list"),
        ({"queue.buffering.max.ms": 5}, ProducerSettings, "Write 'linger.ms'"),
        ({"sasl_plain_username": "me"}, AdminSettings, "Write 'sasl.username'"),
        ({"ssl_cafile": "ca.pem"}, ProducerSettings, "Write 'ssl.ca.location'"),
        ({"oauth_cb": print}, ProducerSettings, "Write 'sasl.oauthbearer.token.provider'"),
        ({"enable.auto.comit": True}, ConsumerSettings, "Did you mean 'enable.auto.commit'"),
    ],
)
def test_a_setting_of_another_client_is_answered_with_what_to_write(
    settings: dict[str, Any], kind: Any, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse(kind, SERVERS, settings)


def test_no_setting_of_ours_is_called_another_clients() -> None:
    ours = {name for kind in (AdminSettings, ConsumerSettings, ProducerSettings) for name, *_ in documentation(kind)}
    assert not ours & set(SETTINGS)


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        (client.Producer, "produce", r"producer.send\(topic, value"),
        (client.Producer, "poll", "leave it out"),
        (client.Producer, "start", r"write `with Producer\(...\) as producer:`"),
        (client.Producer, "send_and_wait", r"producer.send\(...\).result\(\)"),
        (client.Consumer, "consume", r"write consumer.poll"),
        (client.Admin, "list_consumer_groups", r"write admin.list_groups\(\)"),
    ],
)
def test_a_method_of_another_client_is_answered_with_ours(kind: Callable[..., Any], name: str, expected: str) -> None:
    with kind(SERVERS) as made, pytest.raises(AttributeError, match=expected):
        getattr(made, name)


async def test_the_asyncio_clients_answer_with_await() -> None:
    async with aio.Producer(SERVERS) as producer, aio.Consumer(SERVERS) as consumer:
        with pytest.raises(AttributeError, match=r"`async with Producer\(...\) as producer:`"):
            producer.start  # type: ignore[attr-defined]  # noqa: B018 - another client's name
        with pytest.raises(AttributeError, match=r"await producer.send\(...\)"):
            producer.send_and_wait  # type: ignore[attr-defined]  # noqa: B018 - another client's name
        with pytest.raises(AttributeError, match=r"await consumer.poll\(timeout_ms, 1\)"):
            consumer.getone  # type: ignore[attr-defined]  # noqa: B018 - another client's name
        assert not hasattr(consumer, "no_such_thing")


@pytest.mark.parametrize("name", ["KafkaProducer", "AIOKafkaConsumer", "AdminClient"])
def test_a_class_of_another_client_is_answered_with_ours(name: str) -> None:
    for module in (einmal.client, aio):
        with pytest.raises(AttributeError, match="; write (Producer|Consumer|Admin)$"):
            getattr(module, name)


async def test_what_is_done_at_once_may_be_awaited() -> None:
    async with aio.Consumer(SERVERS, group_id="g") as consumer:
        await consumer.subscribe(["t"])
        consumer.subscribe(["t"])
    async with aio.Consumer(SERVERS) as consumer:
        partition: Any = ("t", 0)  # A plain tuple works at runtime, too.
        await consumer.assign([partition])
        await consumer.seek_to_beginning()
        await consumer.seek(partition, 5)
        await consumer.pause(partition)
        await consumer.resume(partition)


def test_headers_may_be_a_mapping_or_pairs_and_values_text() -> None:
    expected = (Header("a", b"1"), Header("b", None))
    assert headers_of({"a": b"1", "b": None}) == expected
    assert headers_of([("a", "1"), ("b", None)]) == expected
    assert headers_of([Header("a", b"1"), Header("b", None)]) == expected
    assert headers_of({}) == ()


@pytest.mark.parametrize("headers", [["a"], ["ab"], [("a",)], [(1, b"x")], {"a": 1}, 5, "a=b"])
def test_headers_of_another_shape_are_an_error_that_shows_the_shape(headers: Any) -> None:
    with pytest.raises(LocalError, match="header"):
        headers_of(headers)


@pytest.mark.parametrize("timeout", [1.0, 0.5, "1000", -1, None])
def test_a_timeout_in_seconds_is_an_error_that_asks_for_milliseconds(timeout: Any) -> None:
    with pytest.raises(LocalError, match="whole milliseconds"):
        check_timeout(timeout)


def test_a_timeout_of_one_second_is_translated() -> None:
    with client.Consumer(SERVERS) as consumer, pytest.raises(LocalError, match=r"poll\(1000\)"):
        consumer.poll(1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"topic": b"t"}, "a topic is named by text"),
        ({"topic": ""}, "a topic is named by text"),
        ({"value": {"a": 1}}, r"bytes, str or None, not dict.*json.dumps"),
        ({"key": 7}, "key must be bytes, str or None, not int"),
        ({"partition": "0"}, "a partition is a whole number"),
        ({"partition": -1}, "a partition is a whole number"),
        ({"partition": True}, "a partition is a whole number"),
        ({"timestamp": 1.5e9}, r"int\(time.time\(\) \* 1000\)"),
        ({"headers": {"a": 1}}, "header value must be bytes"),
        ({"topic": LONE_SURROGATE}, "UTF-8 cannot encode a topic's name"),
        ({"value": LONE_SURROGATE}, "UTF-8 cannot encode a record's value"),
        ({"key": LONE_SURROGATE}, "UTF-8 cannot encode a record's key"),
        ({"headers": {LONE_SURROGATE: b"v"}}, "UTF-8 cannot encode a header's name"),
        ({"headers": {"a": LONE_SURROGATE}}, "UTF-8 cannot encode a record's header value"),
    ],
)
def test_a_record_of_the_wrong_types_is_refused_where_it_is_sent(arguments: dict[str, Any], expected: str) -> None:
    with client.Producer(SERVERS) as producer, pytest.raises(LocalError, match=expected):
        producer.send(**{"topic": "t", "value": b"v", **arguments})


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda consumer: consumer.seek(T0, 2**63), "an offset is a whole number"),
        (lambda consumer: consumer.seek(T0, -1), "an offset is a whole number from 0 on"),
        (lambda consumer: consumer.commit({T0: -1}), "an offset is a whole number from 0 on"),
        (lambda consumer: consumer.seek(T0, "5"), "an offset is a whole number"),
        (lambda consumer: consumer.seek(T0, client.OffsetAndMetadata(0, 2**31)), "a leader epoch is a whole number"),
        (lambda consumer: consumer.commit({T0: 2**63}), "an offset is a whole number"),
        (
            lambda consumer: consumer.commit({T0: client.OffsetAndMetadata(0, -1, LONE_SURROGATE)}),
            "UTF-8 cannot encode",
        ),
        (lambda consumer: consumer.assign([("t", 2**31)]), "a partition is a whole number"),
        (lambda consumer: consumer.assign([("t", -1)]), "a partition is a whole number"),
        (lambda consumer: consumer.assign([(LONE_SURROGATE, 0)]), "UTF-8 cannot encode a topic's name"),
        (lambda consumer: consumer.assign([None]), "a partition is a topic and a number, not None"),
        (lambda consumer: consumer.seek(T0, True), "an offset is a whole number"),
        (
            lambda consumer: consumer.commit({T0: client.OffsetAndMetadata(0, -1, cast(str, b"m"))}),
            "an offset's metadata is text",
        ),
        (lambda consumer: consumer.commit([T0]), "are a mapping, not"),
        (lambda consumer: consumer.commit({"t": 0}), "a partition is a topic and a number, not 't'"),
        (lambda consumer: consumer.offsets_for_times([T0]), "are a mapping, not"),
        (lambda consumer: consumer.partitions_for_topic(None), "a topic is named by text"),
        *(
            (lambda consumer, name=name: getattr(consumer, name)([T0, T0]), r"as in pause\(\*partitions\)")
            for name in ("pause", "resume", "seek_to_beginning", "seek_to_end", "committed", "end_offsets")
        ),
    ],
)
def test_a_position_or_a_partition_that_cannot_be_is_refused_where_it_is_named(
    use: Callable[[client.Consumer], None], expected: str
) -> None:
    # One such number in a request would cost all partitions of the same broker their records.
    with client.Consumer(SERVERS, group_id="g", enable_auto_commit=False) as consumer:
        consumer.assign([T0])
        with pytest.raises(LocalError, match=expected):
            use(consumer)
        assert consumer.assignment() == [T0]


@pytest.mark.parametrize(
    "group", [None, "", b"g", client.GroupMetadata("g", True), client.GroupMetadata(LONE_SURROGATE)]
)
def test_offsets_of_no_group_are_refused_before_they_abort_the_transaction(group: Any) -> None:
    with pytest.raises(LocalError):
        group_of(group)


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda admin: admin.list_offsets([T0]), "are a mapping, not"),
        (lambda admin: admin.delete_records({"t": 1}), "a partition is a topic and a number"),
        (lambda admin: admin.list_group_offsets("g", [None]), "a partition is a topic and a number"),
        (lambda admin: admin.create_topics("orders"), r"Write \['orders'\]"),
        (lambda admin: admin.create_topics([None]), "topics are named by text"),
        (
            lambda admin: admin.create_topics([replace(client.NewTopic("t"), **cast(Any, {"name": b"t"}))]),
            "topics are named by text",
        ),
        (
            lambda admin: admin.create_topics([replace(client.NewTopic("t"), configs=cast(Any, {"retention.ms": 1}))]),
            "settings are texts",
        ),
        (lambda admin: admin.alter_configs("t", {"retention.ms": 1}), "settings are texts"),
        (lambda admin: admin.delete_topics("ab"), r"Write \['ab'\]"),
        (lambda admin: admin.delete_topics([b"ab"]), "topics are named by text"),
        (lambda admin: admin.delete_topics([LONE_SURROGATE]), "UTF-8 cannot encode"),
        (lambda admin: admin.describe_topics("ab"), r"Write \['ab'\]"),
        (lambda admin: admin.describe_configs("ab"), r"Write \['ab'\]"),
        (lambda admin: admin.describe_groups("ab"), r"Write \['ab'\]"),
        (lambda admin: admin.delete_groups("ab"), r"Write \['ab'\]"),
        (lambda admin: admin.describe_transactions("ab"), r"Write \['ab'\]"),
        (lambda admin: admin.list_transactions(states="Ongoing"), r"Write \['Ongoing'\]"),
        (lambda admin: admin.describe_scram_users("ab"), r"Write \['ab'\]"),
    ],
)
def test_a_text_is_no_list_of_names(use: Callable[[client.Admin], None], expected: str) -> None:
    """Its letters were: delete_groups("ab") deleted the groups a and b."""
    with client.Admin(SERVERS) as admin, pytest.raises(LocalError, match=expected):
        use(admin)


def test_a_topic_that_cannot_be_is_refused_where_it_is_subscribed_to() -> None:
    with (
        client.Consumer(SERVERS, group_id="g") as consumer,
        pytest.raises(LocalError, match="UTF-8 cannot encode a topic's name"),
    ):
        consumer.subscribe(["t", LONE_SURROGATE])
