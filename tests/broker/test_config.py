import pytest

from einmal.broker.config import (
    SETTINGS,
    STANDARD_AUTHORIZER,
    BrokerConfig,
    ConfigError,
    broker_config,
    parse_assignments,
    parse_properties,
)
from einmal.broker.kafka_settings import warnings_of


def test_every_setting_is_known_by_kafkas_key_and_documented() -> None:
    assert SETTINGS["transaction.max.timeout.ms"].name == "transaction_max_timeout_ms"
    for key, setting in SETTINGS.items():
        assert setting.metadata["about"].endswith("."), key


def test_values_are_parsed_by_their_kind_and_later_ones_win() -> None:
    values = parse_properties("num.partitions=3\nauto.create.topics.enable = false\n")
    values |= parse_assignments(["num.partitions=4", "listeners=PLAINTEXT://h:1,CONTROLLER://:2"])
    config, unknown = broker_config(values)
    assert (config.num_partitions, config.auto_create_topics_enable, unknown) == (4, False, ())
    assert config.named_listeners.first.endpoint == ("h", 1)
    assert config.given == ("num.partitions", "auto.create.topics.enable", "listeners")


def test_properties_have_comments_colons_and_continuation_lines() -> None:
    text = "# a\n! b\n\n log.dirs : /x=y \nlisteners=PLAINTEXT://a:1,\\\n  CONTROLLER://b:2\nflag\n"
    assert parse_properties(text) == {
        "log.dirs": "/x=y ",
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
        ({"log.retention.hours": "-5"}, -1),
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
        {"log.segment.bytes": str(2**20 - 1)},
        {"auto.create.topics.enable": "1"},
        {"log.cleanup.policy": "burn"},
        {"log.retention.hours": "x"},
        {"log.retention.ms": "0"},
        {"replica.fetch.wait.max.ms": "30001"},
        {"queued.max.request.bytes": "104857599"},
        {"max.connections.per.ip": "0"},
        {"log.cleaner.dedupe.buffer.size": "1048576"},
        {"log.retention.minutes": str(2**31)},
        {"log.roll.hours": "0"},
        {"log.roll.hours": "-1"},
        {"log.roll.hours": str(2**31)},
        {"log.roll.ms": str(2**63)},
        {"replica.fetch.wait.max.ms": str(2**31)},
        {"replica.fetch.response.max.bytes": str(2**31)},
        {"default.replication.factor": str(2**15)},
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
def test_the_advertised_address_is_reachable_by_clients(listeners: str, advertised: str, told: str) -> None:
    config = BrokerConfig(listeners=listeners, advertised_listeners=advertised)
    assert str(config.advertised(config.named_listeners.first, 5)) == told


@pytest.mark.parametrize("listeners", ["a", "a:b", "a:70000", "CONTROLLER://a:1"])
def test_an_address_that_is_none_is_refused(listeners: str) -> None:
    with pytest.raises(ConfigError, match="listeners"):
        _ = BrokerConfig(listeners=listeners).named_listeners


def checked(**values: str) -> BrokerConfig:
    """The settings, as a node checks them at its start."""
    config, _unknown = broker_config({key.replace("_", "."): value for key, value in values.items()})
    config.check_roles()
    return config


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl.engine.factory.class", "a.B"),
        ("ssl.provider", "SunJSSE"),
        ("ssl.keymanager.algorithm", "PKIX"),
        ("sasl.kerberos.service.name", "kafka"),
        ("listener.name.client.ssl.engine.factory.class", "a.B"),
        ("listener.name.client.principal.builder.class", "a.B"),
        ("security.inter.broker.protocol", "SSL"),
        ("delegation.token.secret.key", "x"),
        ("principal.builder.class", "a.B"),
        ("create.topic.policy.class.name", "a.B"),
        ("alter.config.policy.class.name", "a.B"),
        ("client.quota.callback.class", "a.B"),
        ("log.flush.interval.ms", "1000"),
        ("config.providers", "file,vault"),
        ("remote.log.storage.system.enable", "true"),
    ],
)
def test_a_setting_that_promises_safety_and_is_not_supported_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is not supported: "):
        broker_config({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl.keymanager.algorithm", "SunX509"),
        ("security.inter.broker.protocol", "PLAINTEXT"),
        ("remote.log.storage.system.enable", "false"),
    ],
)
def test_a_value_that_promises_nothing_is_accepted(name: str, value: str) -> None:
    assert broker_config({name: value})[1] == (name,)


def test_an_authorizer_is_set_as_for_apache_kafka() -> None:
    config = checked(authorizer_class_name=STANDARD_AUTHORIZER, super_users=" User:admin;User:CN=a,OU=b ;; Group:ops")
    assert list(map(str, config.super_user_principals)) == ["User:admin", "User:CN=a,OU=b", "Group:ops"]
    assert not config.allow_everyone_if_no_acl_found
    assert checked(authorizer_class_name="").super_user_principals == ()


_OF_A_CLUSTER = {
    "authorizer_class_name": STANDARD_AUTHORIZER,
    "process_roles": "broker",
    "listeners": "PLAINTEXT://:1,INTERNAL://a:2",
    "inter_broker_listener_name": "INTERNAL",
    "controller_quorum_voters": "2@b:9093",
    "einmal_cluster_secret_file": "/secret",
}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"authorizer_class_name": "kafka.security.authorizer.AclAuthorizer"}, "no class of your own runs here"),
        ({"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": "admin"}, "'admin' is not a principal"),
        (
            {"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": "User:admin, User:bob"},
            "'User:admin, User:bob' is one principal: separate several by semicolons",
        ),
        ({"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": "user:admin"}, "one spelling: write User:admin"),
        ({"super_users": "User:admin"}, "super.users has no effect without authorizer.class.name"),
        ({"allow_everyone_if_no_acl_found": "true"}, "allow.everyone.if.no.acl.found has no effect without"),
        (
            {**_OF_A_CLUSTER, "listener_security_protocol_map": "INTERNAL:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT"},
            "other brokers do not authenticate.*inter.broker.listener.name.*User:ANONYMOUS",
        ),
        (
            {**_OF_A_CLUSTER, "listener_security_protocol_map": "INTERNAL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"},
            "controllers and brokers do not authenticate.*controller.listener.names.*User:ANONYMOUS",
        ),
    ],
)
def test_an_authorizer_that_cannot_decide_prevents_a_start(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(**settings)


def test_nodes_that_do_not_authenticate_need_a_super_user_anonymous() -> None:
    protocols = {"listener_security_protocol_map": "INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"}
    settings = {**_OF_A_CLUSTER, **protocols, "super_users": "User:ANONYMOUS", "einmal_cluster_secret_file": ""}
    assert checked(**settings).super_user_principals


def test_nodes_that_authenticate_need_no_super_user() -> None:
    checked(**_OF_A_CLUSTER, listener_security_protocol_map="INTERNAL:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"}, "PLAINTEXT is there twice"),
        ({"listeners": "EXTERNAL://:1"}, "EXTERNAL has no security protocol"),
        (
            {"listeners": "PLAINTEXT://:1,CONTROLLER://:2", "listener_security_protocol_map": "CONTROLLER:SSL"},
            "CONTROLLER is SSL, by which nodes cannot prove.*set SASL_SSL",
        ),
        (
            {"listeners": "SSL://:1,CONTROLLER://:2"},
            "SSL is SSL, by which nodes cannot prove.*set SASL_SSL",
        ),
        ({"listeners": "SSL://:1,SASL_SSL://:2,CONTROLLER://:3"}, "set inter.broker.listener.name.*SSL, SASL_SSL"),
        ({"listeners": "SASL_SSL://:1"}, "nobody could authenticate there"),
        ({"sasl_enabled_mechanisms": "PLAIN"}, "sasl.enabled.mechanisms protects nothing"),
        (
            {"listeners": "PLAINTEXT://:1,SSL://:2", "advertised_listeners": "PLAINTEXT://a:1"},
            "advertised.listeners=PLAINTEXT://a:1 has no address for SSL",
        ),
        (
            {"listeners": "PLAINTEXT://:1", "advertised_listeners": "PLAINTEXT://a:1,SSL://a:2"},
            "advertised.listeners: SSL is not in listeners",
        ),
        *(
            ({"listeners": "PLAINTEXT://:1", "advertised_listeners": f"PLAINTEXT://{host}:1"}, "to which nobody can")
            for host in ("", "0.0.0.0", "[::]")
        ),
        (
            {"listeners": "PLAINTEXT://:1,CONTROLLER://:2", "controller_quorum_voters": "1@a:2,2@b:2"},
            "other brokers would look for this one at localhost",
        ),
        ({"inter_broker_listener_name": "CONTROLLER"}, "CONTROLLER cannot be in both"),
        ({"controller_listener_names": ""}, "controller.listener.names is empty"),
        (
            {
                "listeners": "PLAINTEXT://:1,CONTROLLER://:2",
                "listener_security_protocol_map": "CONTROLLER:SASL_PLAINTEXT",
            },
            "needs einmal.cluster.secret.file",
        ),
        ({"listener_security_protocol_map": "PLAINTEXT=SSL"}, "is not NAME:PROTOCOL"),
        ({"einmal_cluster_secret_file": "/secret"}, "einmal.cluster.secret.file protects nothing"),
        ({"inter_broker_listener_name": "INTERNAL"}, "inter.broker.listener.name=INTERNAL is not in listeners"),
        ({"log_dirs": "/a,/b"}, "one folder is supported"),
    ],
)
def test_a_listener_or_folder_that_would_be_dropped_is_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(**settings)


def test_brokers_have_a_listener_of_their_own_under_any_name() -> None:
    config = checked(
        listeners="EXTERNAL://:1,REPLICATION://:2,CONTROLLER://:3",
        listener_security_protocol_map="EXTERNAL:PLAINTEXT,REPLICATION:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        inter_broker_listener_name="REPLICATION",
        advertised_listeners="EXTERNAL://example.test:9,REPLICATION://inside.test:8",
        einmal_cluster_secret_file="/secret",
    )
    listeners = config.named_listeners
    external, replication = listeners.of_broker
    assert listeners.first == external and external.endpoint.port == 1
    assert listeners.between_brokers == replication
    assert str(config.advertised(external, 1)) == "example.test:9"
    assert str(config.advertised(replication, 2)) == "inside.test:8"
    assert not config.clients_may_act_as_brokers


@pytest.mark.parametrize(
    ("listeners", "between", "may_act"),
    [
        ("PLAINTEXT://:1,CONTROLLER://:3", "PLAINTEXT", True),
        ("EXTERNAL://:1,CONTROLLER://:3", "EXTERNAL", True),
        ("EXTERNAL://:1,PLAINTEXT://:2,CONTROLLER://:3", "PLAINTEXT", False),
        ("SASL_SSL://:1,CONTROLLER://:3", "SASL_SSL", False),
    ],
)
def test_without_a_name_brokers_use_plaintext_or_the_only_listener(listeners: str, between: str, may_act: bool) -> None:
    config = checked(
        listeners=listeners,
        listener_security_protocol_map="EXTERNAL:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        einmal_cluster_secret_file="/secret",
    )
    found = config.named_listeners.between_brokers
    assert found is not None and found.name == between and found.is_between_nodes
    assert config.clients_may_act_as_brokers is may_act


def test_a_controller_has_several_listeners_and_others_use_the_first() -> None:
    config = checked(listeners="PLAINTEXT://:1,B://:2,A://:3", controller_listener_names="A,B")
    assert [each.name for each in config.named_listeners.of_controller] == ["B", "A"]
    assert config.named_listeners.controllers_elsewhere.name == "A"


def test_the_properties_that_apache_kafka_ships_with_are_accepted() -> None:
    text = """
    process.roles=broker,controller
    node.id=1
    controller.quorum.bootstrap.servers=localhost:9093
    listeners=PLAINTEXT://:9092,CONTROLLER://:9093
    inter.broker.listener.name=PLAINTEXT
    advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
    controller.listener.names=CONTROLLER
    listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
    num.network.threads=3
    num.io.threads=8
    socket.send.buffer.bytes=102400
    log.dirs=/tmp/kraft-combined-logs
    num.partitions=1
    num.recovery.threads.per.data.dir=1
    share.coordinator.state.topic.replication.factor=1
    share.coordinator.state.topic.min.isr=1
    log.retention.hours=168
    """
    config, unknown = broker_config(parse_properties(text))
    config.check_roles()
    (told,) = warnings_of(unknown, SETTINGS)
    assert told.startswith(
        "settings of Apache Kafka that have no effect here: controller.quorum.bootstrap.servers, num.n"
    )


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("auto.create.topic.enable", "auto.create.topics.enable"), ("min.insync.replica", "min.insync.replicas")],
)
def test_a_misspelt_setting_names_the_nearest(name: str, nearest: str) -> None:
    assert warnings_of([name], SETTINGS) == [f"unknown setting {name} is ignored; did you mean {nearest}?"]


def test_a_setting_that_is_near_no_other_is_only_named() -> None:
    assert warnings_of(["zookeeper.connect"], SETTINGS) == ["unknown setting zookeeper.connect is ignored"]


def test_every_number_has_the_bounds_of_its_type() -> None:
    """One beyond them was taken, and failed where it was first sent."""
    for key, setting in SETTINGS.items():
        if type(setting.default) is int:
            low, high = setting.metadata["low"], setting.metadata["high"]
            assert low <= setting.default <= high
            assert high in (2, 2**15 - 1, 2**31 - 1, 2**63 - 1), key
            for value in (low, high):
                try:
                    broker_config({key: str(value)})
                except ConfigError as error:
                    # Another setting's default does not go with it.
                    assert "is more than" in str(error) or "without" in str(error), error
