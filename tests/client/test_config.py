"""Claims about settings: Kafka's names in either form, values as text, and errors that name the nearest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from einmal.client.config import (
    AdminSettings,
    ConsumerSettings,
    ProducerSettings,
    addresses,
    documentation,
    dotted,
    parse,
)
from einmal.client.errors import ConfigError
from tests.suite.patience import patient

SERVERS = {"bootstrap.servers": "127.0.0.1:9092"}


def producer(**settings: Any) -> ProducerSettings:
    return parse(ProducerSettings, SERVERS, settings)


def test_dotted_names_and_keywords_are_equivalent() -> None:
    assert parse(ProducerSettings, {**SERVERS, "linger.ms": 7}, {}) == producer(linger_ms=7)


def test_values_may_be_text_as_in_a_properties_file() -> None:
    settings = parse(ConsumerSettings, {**SERVERS, "enable.auto.commit": "false", "fetch.min.bytes": "3"}, {})
    assert (settings.enable_auto_commit, settings.fetch_min_bytes) == (False, 3)


def test_the_name_of_transactions_stands_as_it_is_and_other_text_is_trimmed() -> None:
    given = {"bootstrap.servers": " h:1 ", "client.id": " c ", "transactional.id": " a b "}
    settings = parse(ProducerSettings, given, {})
    assert (settings.transactional_id, settings.client_id) == (" a b ", "c")


def test_several_servers_are_a_list_or_one_text() -> None:
    given_as_list = parse(AdminSettings, {}, {"bootstrap_servers": ["a:1", "b:2"]})
    given_as_text = parse(AdminSettings, {}, {"bootstrap_servers": "a:1, b:2"})
    assert addresses(given_as_list.bootstrap_servers) == addresses(given_as_text.bootstrap_servers)
    assert addresses("[::1]:9092") == [("::1", 9092)]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"linger_millis": 5}, "'linger.millis'. Did you mean 'linger.ms'?"),
        ({"isolation.level": "read_committed"}, "unknown setting 'isolation.level'"),
        ({"linger.ms": "soon"}, "linger.ms is a whole number, not 'soon'"),
        ({"linger.ms": -1}, "linger.ms is at least 0, not -1"),
        ({"linger.ms": 2**63}, "linger.ms is at most 9223372036854775807, not"),
        ({"transaction.timeout.ms": 2**31}, "transaction.timeout.ms is at most 2147483647, not 2147483648"),
        ({"acks": "2"}, "acks cannot be '2'"),
        ({"compression.type": "brotli"}, "one of none, gzip, snappy, lz4, zstd"),
        ({"enable.idempotence": "perhaps"}, "enable.idempotence is true or false"),
        ({"bootstrap.servers": "nowhere"}, "'nowhere', which is no host:port"),
        ({"transactional.id": ""}, "transactional.id cannot be empty"),
        ({"transactional.id": "a", "enable.idempotence": False}, "transactional.id needs enable.idempotence=true"),
        ({"enable.idempotence": True, "acks": "1"}, "idempotence needs acks=all, not 1"),
        ({"max.in.flight.requests.per.connection": 6}, "a broker remembers the last 5 batches"),
        ({"linger.ms": None}, "linger.ms cannot be None"),
        ({"linger.ms": 0.5}, "linger.ms is a whole number, not 0.5"),
        ({"linger.ms": float("inf")}, "linger.ms is a whole number, not inf"),
        ({"linger.ms": True}, "linger.ms is a whole number, not True"),
        ({"transactional.id": b"abc"}, "transactional.id is text, not bytes"),
        ({"sasl.password": b"secret"}, "sasl.password is text, not bytes"),
        ({"client.id": "\ud800"}, "client.id: a text with"),
        ({"client.id": "a" * 2**15}, "client.id has more than 32767 bytes"),
        ({"bootstrap.servers": "h:" + "1" * 5_000}, "which is no host:port"),
        ({"bootstrap.servers": "PLAINTEXT://h:9092"}, "with a protocol. Write host:port alone"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_reason(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(ProducerSettings, {**SERVERS, **given}, {})
    assert text in str(caught.value)


def test_a_consumer_has_a_named_group_or_none() -> None:
    with pytest.raises(ConfigError, match=r"group\.id cannot be empty"):
        parse(ConsumerSettings, SERVERS, {"group_id": " "})


def test_a_missing_server_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing"):
        parse(AdminSettings, {}, {})


def test_a_setting_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"linger\.ms is set twice"):
        parse(ProducerSettings, {**SERVERS, "linger.ms": 1}, {"linger_ms": 2})


@pytest.mark.parametrize(
    ("given", "idempotent"),
    [
        ({}, True),
        ({"acks": "-1"}, True),
        ({"acks": "1"}, False),
        ({"acks": 0}, False),
        ({"transactional_id": "x"}, True),
    ],
)
def test_idempotence_follows_acks(given: dict[str, Any], idempotent: bool) -> None:
    assert producer(**given).enable_idempotence is idempotent


@pytest.mark.parametrize("kind", [ProducerSettings, ConsumerSettings, AdminSettings])
def test_every_setting_is_documented_and_dotted(kind: Any) -> None:
    for name, _default, text in documentation(kind):
        assert "_" not in name
        assert text.endswith(".")
    assert dotted("max_poll_interval_ms") == "max.poll.interval.ms"


def test_the_page_of_settings_is_that_of_the_tables() -> None:
    root = Path(__file__).parent.parent.parent
    subprocess.run([sys.executable, "-m", "tools.list_settings", "--check"], cwd=root, check=True, timeout=patient(60))
