import pytest

from einmal.broker.config import SETTINGS, BrokerConfig, ConfigError, broker_config, parse_assignments, parse_properties


def test_every_setting_is_known_by_kafkas_key_and_documented() -> None:
    assert SETTINGS["transaction.max.timeout.ms"].name == "transaction_max_timeout_ms"
    for key, setting in SETTINGS.items():
        assert setting.metadata["about"].endswith("."), key


def test_values_are_parsed_by_their_kind_and_later_ones_win() -> None:
    values = parse_properties("num.partitions=3\nauto.create.topics.enable = false\n")
    values |= parse_assignments(["num.partitions=4", "listeners=PLAINTEXT://h:1,CONTROLLER://:2"])
    config, unknown = broker_config(values)
    assert (config.num_partitions, config.auto_create_topics_enable, unknown) == (4, False, ())
    assert config.listener == ("h", 1)
    assert config.given == ("num.partitions", "auto.create.topics.enable", "listeners")


def test_properties_have_comments_colons_and_lines_that_go_on() -> None:
    text = "# a\n! b\n\n log.dirs : /x=y \nlisteners=PLAINTEXT://a:1,\\\n  CONTROLLER://b:2\nflag\n"
    assert parse_properties(text) == {
        "log.dirs": "/x=y",
        "listeners": "PLAINTEXT://a:1,CONTROLLER://b:2",
        "flag": "",
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.minutes": "3", "log.retention.hours": "2"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.ms": "5", "log.retention.minutes": "3"}, 5),
        ({"log.retention.minutes": "3", "log.retention.ms": "5"}, 5),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_the_finer_key_of_a_time_holds(values: dict[str, str], expected: int) -> None:
    assert broker_config(values)[0].log_retention_ms == expected


def test_unknown_keys_are_given_back() -> None:
    assert broker_config({"zookeeper.connect": "x", "broker.id": "3"}) == (
        BrokerConfig(node_id=3, given=("node.id",)),
        ("zookeeper.connect",),
    )


@pytest.mark.parametrize(
    "values",
    [
        {"num.partitions": "0"},
        {"num.partitions": "many"},
        {"log.segment.bytes": str(2**31)},
        {"auto.create.topics.enable": "1"},
        {"log.cleanup.policy": "burn"},
        {"log.retention.hours": "x"},
    ],
)
def test_what_cannot_be_meant_is_refused(values: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        broker_config(values)


@pytest.mark.parametrize(
    ("listeners", "advertised", "told"),
    [
        ("PLAINTEXT://127.0.0.1:0", "", "127.0.0.1:5"),
        ("PLAINTEXT://:0", "", "localhost:5"),
        ("0.0.0.0:0", "", "localhost:5"),
        ("PLAINTEXT://[::1]:0", "", "[::1]:5"),
        ("PLAINTEXT://:0", "PLAINTEXT://example.test:19092", "example.test:19092"),
        ("PLAINTEXT://:0", "PLAINTEXT://example.test:0", "example.test:5"),
    ],
)
def test_clients_are_told_an_address_that_they_can_use(listeners: str, advertised: str, told: str) -> None:
    assert str(BrokerConfig(listeners=listeners, advertised_listeners=advertised).advertised(5)) == told


@pytest.mark.parametrize("listeners", ["SSL://a:1", "a", "a:b", "a:70000", "CONTROLLER://a:1"])
def test_an_address_that_is_none_is_refused(listeners: str) -> None:
    with pytest.raises(ConfigError, match="listeners"):
        _ = BrokerConfig(listeners=listeners).listener
