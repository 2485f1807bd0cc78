"""The ``kafka.*`` options of a source or a sink, checked on the driver against the client's settings. Pure.

Settings of Kafka's Java client without a counterpart here are accepted where leaving them out changes no result, and
are listed for the log. Everything else that has no effect is an error that names what to write instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from einmal.client.config import ConsumerSettings, ProducerSettings, dotted, normalised, parse
from einmal.client.errors import ConfigError
from einmal.security.redaction import RedactedDict

Kind = type[ConsumerSettings] | type[ProducerSettings]

_KNOWN: Final = {
    kind: frozenset(dotted(field.name) for field in dataclasses.fields(kind))
    for kind in (ConsumerSettings, ProducerSettings)
}

PRODUCER_NAMES: Final = _KNOWN[ProducerSettings]
"""Settings of the producer, by Kafka's names."""

_WITHOUT_EFFECT: Final = frozenset(
    {
        # sockets, names and addresses
        "client.dns.lookup",
        "client.rack",
        "connections.max.idle.ms",
        "receive.buffer.bytes",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "metadata.max.idle.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "bootstrap.controllers",
        # TLS and SASL: Java's own tuning. Tokens are renewed as they expire; algorithms are OpenSSL's.
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
        "ssl.keymanager.algorithm",
        "ssl.protocol",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
        # metrics
        "auto.include.jmx.reporter",
        "enable.metrics.push",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        # producers: retries continue until delivery.timeout.ms, as in Java's client
        "retries",
        # batches are made in tasks, from rows that are there already
        "linger.ms",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        # consumers: the source joins no group
        "exclude.internal.topics",
        "group.protocol",
        "group.remote.assignor",
        "internal.leave.group.on.close",
    }
)

_REFUSED: Final = {
    "key.deserializer": "key and value are binary columns: CAST them in the query",
    "value.deserializer": "key and value are binary columns: CAST them in the query",
    "key.serializer": "key and value are strings or binary: make them in the query",
    "value.serializer": "key and value are strings or binary: make them in the query",
    "auto.offset.reset": 'where a query begins is .option("startingOffsets", ...)',
    "enable.auto.commit": "positions are in the checkpoint and in the commit record: leave it out",
    "interceptor.classes": "classes of Java's client do not run here: change records in the query",
    "partitioner.class": 'classes of Java\'s client do not run here: name partitions in a column "partition"',
    "sasl.oauthbearer.token.provider": "a function cannot be an option of Spark's: set "
    "kafka.sasl.oauthbearer.token.endpoint.url to https://... or file://...",
    "security.providers": "classes of Java's client do not run here: leave it out",
    "partitioner.ignore.keys": 'drop the key, or name partitions in a column "partition"',
}
_OF_THE_SINK: Final = "group.id"
"""The group under which a sink commits its sources' positions: the producer does not have one."""
_ALWAYS_ALL: Final = {"acks": ("all", "-1"), "enable.idempotence": ("true",)}
"""Settings of a sink that have one value here, under every guarantee."""


class ClientOptions(NamedTuple):
    """``settings``: for the client. ``without_effect``: the options that were left out, by their names."""

    settings: dict[str, str]
    without_effect: tuple[str, ...]


class ClientOptionError(ValueError):
    """``hint``: what to write instead."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


def client_options(kind: Kind, given: Mapping[str, str]) -> ClientOptions:
    """``given``: without the prefix ``kafka.``, in lower case. Raises ClientOptionError."""
    without_effect = [name for name in given if _has_no_effect(kind, name)]
    dropped = {*without_effect, *([_OF_THE_SINK] if kind is ProducerSettings else [])}
    # Its repr hides secrets: options are in the state of sources, sinks and tasks.
    settings = RedactedDict({name: value for name, value in given.items() if name not in dropped})
    for reason, hint in _problems(kind, settings):
        raise ClientOptionError(reason, hint)
    try:
        parse(kind, settings, {})
        settings = RedactedDict(normalised(kind, settings))
    except ConfigError as error:
        raise ClientOptionError(f"kafka.* options: {error.meaning}", error.what_to_do) from error
    return ClientOptions(settings, tuple(f"kafka.{name}" for name in without_effect))


def _has_no_effect(kind: Kind, name: str) -> bool:
    """Also a setting of the other side: a pipeline's settings are those of its sources and its sink."""
    if name in _REFUSED or name == _OF_THE_SINK:
        return False
    return name in _WITHOUT_EFFECT or (name not in _KNOWN[kind] and any(name in known for known in _KNOWN.values()))


def _problems(kind: Kind, settings: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if name in _REFUSED:
            yield f'option "kafka.{name}" has no meaning here', _REFUSED[name]
        if kind is ProducerSettings and value.lower() not in _ALWAYS_ALL.get(name, (value.lower(),)):
            yield (
                f'option "kafka.{name}" cannot be {value!r}: every guarantee of the sink needs all in-sync replicas '
                "to acknowledge, and numbered batches under exactly_once_v2",
                f"leave kafka.{name} out",
            )
