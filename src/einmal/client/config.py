"""Client settings: one table per client, in Kafka's names.

A setting is a field of a frozen dataclass; ``linger_ms`` is ``linger.ms``. The user may write the dotted name in a
mapping, or the field's name as a keyword. Values may be strings, as in a properties file. An unknown name is an
error that suggests the nearest. If a default differs from Java's, its text gives the reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, get_type_hints

from einmal.client.errors import ConfigError
from einmal.client.habits import setting_instead
from einmal.client.security_settings import REQUIRED as _REQUIRED
from einmal.client.security_settings import SecurityOptions
from einmal.client.security_settings import setting as _setting
from einmal.misspelt import nearest_name
from einmal.security.secret import Secret
from einmal.security.settings import TokenCallable

SettingsT = TypeVar("SettingsT", bound="ClientSettings")
_INT64_MAX: Final = 2**63 - 1
_TEXT_MAX: Final = 2**15 - 1
"""Bytes of a client's name in the header of a request."""
_PORT_DIGITS_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings(SecurityOptions):
    """Settings of all clients."""

    bootstrap_servers: str = _setting(
        _REQUIRED, "Brokers of the first connection: host:port, several separated by commas, or a list."
    )
    client_id: str = _setting("einmal", "Name of this client in the broker's logs and quotas.")
    bootstrap_timeout_ms: int = _setting(
        1_500,
        "Maximum time without an answer of any bootstrap server before calls fail with NoBrokerReachable. Once a "
        "broker has answered, lost connections are retried until the call's own deadline.",
        minimum=0,
        maximum=_INT64_MAX,
    )
    request_timeout_ms: int = _setting(
        30_000, "Maximum wait for a response before the connection is closed.", minimum=1
    )
    socket_connection_setup_timeout_ms: int = _setting(
        10_000, "Maximum time to open a connection.", minimum=1, maximum=_INT64_MAX
    )
    retry_backoff_ms: int = _setting(
        100,
        "Base of the pause between retries: the first follows after a tenth of this, each next one later, with jitter.",
        minimum=0,
        maximum=_INT64_MAX,
    )
    retry_backoff_max_ms: int = _setting(1_000, "Maximum pause before a retry.", minimum=0, maximum=_INT64_MAX)
    reconnect_backoff_ms: int = _setting(
        50, "Initial pause before reconnecting to a broker that failed.", minimum=0, maximum=_INT64_MAX
    )
    reconnect_backoff_max_ms: int = _setting(1_000, "Maximum pause before reconnecting.", minimum=0, maximum=_INT64_MAX)
    metadata_recovery_strategy: str = _setting(
        "rebootstrap",
        "Behaviour when no known broker can be reached: rebootstrap uses bootstrap.servers again.",
        choices=("rebootstrap", "none"),
    )
    metadata_max_age_ms: int = _setting(
        300_000, "Maximum age of metadata before it is refreshed.", minimum=0, maximum=_INT64_MAX
    )
    default_api_timeout_ms: int = _setting(60_000, "Deadline of calls without a timeout of their own.", minimum=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings(ClientSettings):
    acks: str = _setting(
        "all", "Replicas that must have a record before it is acknowledged.", choices=("all", "-1", "0", "1")
    )
    enable_idempotence: bool | None = _setting(
        None, "Number the batches so that a retry is never written twice. Default: true if acks is all."
    )
    transactional_id: str | None = _setting(
        None, "Stable name of the producer, under which a restart fences the previous instance."
    )
    transaction_timeout_ms: int = _setting(
        60_000, "Maximum duration of a transaction before the coordinator aborts it.", minimum=1
    )
    transaction_two_phase_commit_enable: bool = _setting(
        False,
        "Take part in two-phase commits (KIP-939): prepare_transaction() is possible, transactions have no timeout.",
    )
    metadata_max_idle_ms: int = _setting(
        300_000,
        "Time without a record after which a topic's metadata is forgotten, and not refreshed any more.",
        minimum=0,
        maximum=_INT64_MAX,
    )
    linger_ms: int = _setting(5, "Time that a batch waits for more records.", minimum=0, maximum=_INT64_MAX)
    batch_size: int = _setting(16_384, "Maximum size of a batch, in bytes.", minimum=0)
    buffer_memory: int = _setting(
        33_554_432, "Maximum size of unacknowledged records, in bytes.", minimum=1, maximum=_INT64_MAX
    )
    compression_type: str = _setting("none", "Codec of the batches.", choices=("none", "gzip", "snappy", "lz4", "zstd"))
    max_in_flight_requests_per_connection: int = _setting(
        5, "Maximum number of unanswered requests per broker; at most 5 with idempotence.", minimum=1
    )
    max_request_size: int = _setting(1_048_576, "Maximum size of a request, and of a record, in bytes.", minimum=1)
    delivery_timeout_ms: int = _setting(
        120_000, "Maximum time from send() to the report of success or failure.", minimum=1
    )
    max_block_ms: int = _setting(
        60_000,
        "Maximum wait for metadata, for space in the buffer, and for the transaction coordinator.",
        minimum=0,
        maximum=_INT64_MAX,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(ClientSettings):
    group_id: str | None = _setting(None, "Consumer group; required by subscribe() and commit().")
    group_instance_id: str | None = _setting(
        None, "Name of a static member, which keeps its partitions across a restart."
    )
    isolation_level: str = _setting(
        "read_committed",
        "Visibility of records of open and aborted transactions. Java's default is read_uncommitted; the "
        "default here, as in librdkafka, hides records that are not committed.",
        choices=("read_committed", "read_uncommitted"),
    )
    auto_offset_reset: str = _setting(
        "latest", "Start without a valid position.", choices=("latest", "earliest", "none")
    )
    enable_auto_commit: bool = _setting(
        True, "Commit positions in the background. Must be false if offsets are committed in transactions."
    )
    auto_commit_interval_ms: int = _setting(5_000, "Interval of background commits.", minimum=0)
    partition_assignment_strategy: str = _setting(
        "range,cooperative-sticky", "Assignors in order of preference: range, roundrobin, cooperative-sticky."
    )
    session_timeout_ms: int = _setting(
        45_000, "Time without a heartbeat after which the group removes a member.", minimum=1
    )
    heartbeat_interval_ms: int = _setting(3_000, "Interval of heartbeats.", minimum=1)
    max_poll_interval_ms: int = _setting(
        300_000, "Maximum time between two polls before the member leaves its group.", minimum=1
    )
    max_poll_records: int = _setting(500, "Maximum number of records returned by one poll().", minimum=1)
    fetch_min_bytes: int = _setting(
        1, "Minimum size of a fetch, in bytes, for which the broker waits up to fetch.max.wait.ms.", minimum=0
    )
    fetch_max_bytes: int = _setting(52_428_800, "Maximum size of a fetch, in bytes.", minimum=1)
    max_partition_fetch_bytes: int = _setting(
        1_048_576, "Maximum size of one partition in a fetch, in bytes.", minimum=1
    )
    fetch_max_wait_ms: int = _setting(500, "Maximum wait of the broker for fetch.min.bytes.", minimum=0)
    check_crcs: bool = _setting(True, "Check the CRC-32C of every fetched batch.")
    allow_auto_create_topics: bool = _setting(True, "Let the broker create subscribed topics.")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings(ClientSettings):
    pass


def parse(kind: type[SettingsT], config: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> SettingsT:
    """Settings from dotted names, keywords, or both. Raises ConfigError."""
    if config is not None and not isinstance(config, Mapping):
        raise _no_mapping(kind, config)
    known = {field.name: field for field in dataclasses.fields(kind)}
    types = _types(kind)
    values: dict[str, Any] = {}
    for given, value in [*(config or {}).items(), *keywords.items()]:
        if not isinstance(given, str):
            raise ConfigError(meaning=f"the name of a setting is text, not {given!r}")
        name = given.replace(".", "_")
        if name not in known:
            raise _unknown(kind, given)
        if name in values:
            raise ConfigError(meaning=f"{dotted(name)} is set twice", what_to_do="set it once")
        values[name] = _convert(known[name], types[name], value)
    for name, field in known.items():
        if name not in values and field.default is dataclasses.MISSING:
            raise ConfigError(meaning=f"{dotted(name)} is missing", what_to_do=f"set it: {field.metadata['doc']}")
    settings = kind(**values)
    return _settle(settings)


_known_types: Final[dict[type[Any], Mapping[str, Any]]] = {}


def _types(kind: type[Any]) -> Mapping[str, Any]:
    """The type of each setting. To read them from the source's text takes longer than to read the settings."""
    if kind not in _known_types:
        _known_types[kind] = get_type_hints(kind)
    return _known_types[kind]


def dotted(name: str) -> str:
    return name.replace("_", ".")


def documentation(kind: type[ClientSettings]) -> list[tuple[str, str, str]]:
    """(dotted name, default, what it does) of every setting, for the printed table."""
    return [
        (
            dotted(field.name),
            "" if field.default in (dataclasses.MISSING, None) else str(field.default),
            _description(field),
        )
        for field in dataclasses.fields(kind)
    ]


def _description(field: dataclasses.Field[Any]) -> str:
    choices = [choice for choice in field.metadata["choices"] if choice]
    return f"{field.metadata['doc']} One of: {', '.join(choices)}." if len(choices) > 1 else str(field.metadata["doc"])


def _no_mapping(kind: type[ClientSettings], given: object) -> ConfigError:
    what_to_do = 'write {"bootstrap.servers": "127.0.0.1:9092"}, or bootstrap_servers="127.0.0.1:9092"'
    if kind is ConsumerSettings and isinstance(given, str):
        what_to_do = f"pass settings as a mapping or as keywords, then call subscribe([{given!r}])"
    return ConfigError(meaning=f"settings are a mapping, not {given!r}", what_to_do=what_to_do)


def _unknown(kind: type[ClientSettings], given: str) -> ConfigError:
    name = dotted(given)
    names = [dotted(field.name) for field in dataclasses.fields(kind)]
    if instead := setting_instead(name):
        return ConfigError(meaning=f"unknown setting {name!r}", what_to_do=instead)
    if near := nearest_name(name, names):
        return ConfigError(meaning=f"unknown setting {name!r}", what_to_do=f"did you mean {near!r}?")
    return ConfigError(meaning=f"unknown setting {name!r}", what_to_do=f"known are: {', '.join(names)}")


def normalised(kind: type[ClientSettings], given: Mapping[str, str]) -> dict[str, str]:
    """Settings in the one form in which they are compared: ``true``, a choice as it is documented, text without blanks
    around it. Secrets and names that are no settings of this kind stay. Raises ConfigError."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    annotations = _types(kind)
    texts = dict(given)
    for name, text in given.items():
        if (field := fields.get(name.replace(".", "_"))) is None:
            continue
        value = _convert(field, annotations[field.name], text)
        if isinstance(value, bool | int | str):
            texts[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return texts


_TRUE_AND_FALSE: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _convert(field: dataclasses.Field[Any], annotation: Any, value: Any) -> Any:
    name = dotted(field.name)
    if value is None:
        if field.default is None:
            return None
        raise ConfigError(meaning=f"{name} cannot be None", what_to_do="leave it out to take the default")
    if isinstance(value, bytes | bytearray | memoryview):
        raise ConfigError(meaning=f"{name} is text, not {type(value).__name__}", what_to_do="decode it first")
    if annotation in (bool, bool | None):
        if isinstance(value, bool):
            return value
        if str(value).lower() in _TRUE_AND_FALSE:
            return _TRUE_AND_FALSE[str(value).lower()]
        raise ConfigError(meaning=f"{name} is true or false, not {value!r}")
    if annotation is int:
        return _to_int(field, value)
    if annotation == TokenCallable | None:
        return value
    if annotation == Secret | None:
        return value if isinstance(value, Secret) else Secret(str(value))
    return _to_text(field, value)


_NAMES: Final = frozenset({"transactional_id"})
"""Kept as they stand: a pipeline's tasks and its commit record use the same name. Others are trimmed, as in Java."""


def _to_text(field: dataclasses.Field[Any], value: Any) -> str:
    name = dotted(field.name)
    if isinstance(value, Secret):
        value = value.reveal()
    if not isinstance(value, str) and isinstance(value, Sequence):
        value = ",".join(str(member) for member in value)
    text = str(value) if field.name in _NAMES else str(value).strip()
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # The text may be a password.
        wrong = text[error.start : error.end]
        raise ConfigError(meaning=f"{name}: a text with {wrong!a} is not UTF-8, in which Kafka has its texts") from None
    choices = field.metadata["choices"]
    if choices:
        text = next((choice for choice in choices if choice.lower() == text.lower()), text)
        if text not in choices:
            known = ", ".join(choice or "empty" for choice in choices)
            raise ConfigError(meaning=f"{name} cannot be {text!r}", what_to_do=f"choose one of {known}")
    return text


def _to_int(field: dataclasses.Field[Any], value: Any) -> int:
    name = dotted(field.name)
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(meaning=f"{name} is a whole number, not {value!r}") from error
    if isinstance(value, bool) or not (isinstance(value, str) or number == value):
        raise ConfigError(meaning=f"{name} is a whole number, not {value!r}")
    minimum = field.metadata["minimum"]
    if minimum is not None and number < minimum:
        raise ConfigError(meaning=f"{name} is at least {minimum}, not {number}")
    if number > field.metadata["maximum"]:
        raise ConfigError(meaning=f"{name} is at most {field.metadata['maximum']}, not {number}")
    return number


def _settle(settings: SettingsT) -> SettingsT:
    """Fill in what follows from other settings, and refuse what contradicts itself."""
    addresses(settings.bootstrap_servers)
    if len(settings.client_id.encode()) > _TEXT_MAX:
        raise ConfigError(meaning=f"client.id has more than {_TEXT_MAX} bytes", what_to_do="choose a shorter name")
    _ = settings.security
    if isinstance(settings, ConsumerSettings) and settings.group_id == "":
        raise ConfigError(meaning="group.id cannot be empty", what_to_do="choose a name, or leave it out: no group")
    if not isinstance(settings, ProducerSettings):
        return settings
    acks = "all" if settings.acks == "-1" else settings.acks
    idempotent = settings.enable_idempotence
    if idempotent is None:
        idempotent = acks == "all" or settings.transactional_id is not None
    if settings.transactional_id is not None and not idempotent:
        raise ConfigError(
            meaning="transactional.id needs enable.idempotence=true", what_to_do="leave it at its default"
        )
    if settings.transactional_id == "":
        raise ConfigError(meaning="transactional.id cannot be empty", what_to_do="choose a stable, unique name")
    if settings.transaction_two_phase_commit_enable:
        _check_two_phase_commit(settings)
    if idempotent and acks != "all":
        raise ConfigError(
            meaning=f"idempotence needs acks=all, not {acks}",
            what_to_do="set acks=all, or enable.idempotence=false and live with duplicates and losses",
        )
    if idempotent and settings.max_in_flight_requests_per_connection > 5:
        raise ConfigError(
            meaning="a broker remembers the last 5 batches of a producer",
            what_to_do="set max.in.flight.requests.per.connection to at most 5",
        )
    return dataclasses.replace(settings, acks=acks, enable_idempotence=idempotent)


def _check_two_phase_commit(settings: ProducerSettings) -> None:
    name = "transaction.two.phase.commit.enable"
    if settings.transactional_id is None:
        raise ConfigError(meaning=f"{name} needs a transactional.id", what_to_do="set it")
    if settings.transaction_timeout_ms != ProducerSettings.__dataclass_fields__["transaction_timeout_ms"].default:
        raise ConfigError(
            meaning=f"transaction.timeout.ms has no meaning with {name}: a prepared transaction never times out",
            what_to_do="set one of the two",
        )


def addresses(bootstrap_servers: str) -> list[tuple[str, int]]:
    """(host, port) of every bootstrap server. Raises ConfigError."""
    result = []
    for server in bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if "://" in host:
            raise ConfigError(
                meaning=f"bootstrap.servers has {server.strip()!r}, with a protocol",
                what_to_do="write host:port alone; security.protocol has the protocol",
            )
        if not host or not port.isdecimal() or len(port) > _PORT_DIGITS_MAX or not 0 < int(port) < 65_536:
            raise ConfigError(
                meaning=f"bootstrap.servers has {server.strip()!r}, which is no host:port",
                what_to_do="write for example 127.0.0.1:9092",
            )
        result.append((host.strip("[]"), int(port)))
    return result
