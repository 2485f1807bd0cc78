"""The first calls of users of other clients, and their equivalents here. Data for error messages.

From the quick starts of kafka-python, aiokafka, confluent-kafka and the Java client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_ENCODE: Final = "send() takes bytes or str: encode before it, as in send(topic, json.dumps(value))"
_DECODE: Final = "records hold bytes: decode them yourself, as in json.loads(record.value)"
_LEAVE_OUT: Final = "leave it out: "
_CALLBACK: Final = "leave it out: send() returns a future; use its result() or add_done_callback()"

SETTINGS: Final[Mapping[str, str]] = {
    "value.serializer": _ENCODE,
    "key.serializer": _ENCODE,
    "value.deserializer": _DECODE,
    "key.deserializer": _DECODE,
    "retries": f"{_LEAVE_OUT}records are retried until delivery.timeout.ms",
    "api.version": f"{_LEAVE_OUT}versions are negotiated with each broker",
    "consumer.timeout.ms": "leave it out: poll(timeout_ms) returns an empty list when nothing comes in time",
    "topics": "subscribe to them: consumer.subscribe([...])",
    "max.in.flight": "write 'max.in.flight.requests.per.connection'",
    "max.in.flight.requests": "write 'max.in.flight.requests.per.connection'",
    "queue.buffering.max.ms": "write 'linger.ms'",
    "message.timeout.ms": "write 'delivery.timeout.ms'",
    "compression.codec": "write 'compression.type'",
    "request.required.acks": "write 'acks'",
    "metadata.broker.list": "write 'bootstrap.servers'",
    "fetch.wait.max.ms": "write 'fetch.max.wait.ms'",
    "message.max.bytes": "write 'max.request.size'",
    "batch.num.messages": "write 'batch.size', in bytes",
    "on.delivery": _CALLBACK,
    "error.cb": f"{_LEAVE_OUT}errors are raised by the calls and futures that they concern",
    "logger": f"{_LEAVE_OUT}messages go to the logger 'einmal.client' of Python's logging",
    "loop": f"{_LEAVE_OUT}the running event loop is used",
    "ssl.cafile": "write 'ssl.ca.location'",
    "ssl.certfile": "write 'ssl.certificate.location'",
    "ssl.keyfile": "write 'ssl.key.location'",
    "ssl.password": "write 'ssl.key.password'",
    "ssl.context": "write 'ssl.ca.location', 'ssl.certificate.location' and 'ssl.key.location'",
    "ssl.check.hostname": "write 'ssl.endpoint.identification.algorithm', https or none",
    "ssl.protocol": f"{_LEAVE_OUT}TLS 1.2 and 1.3 are supported",
    "ssl.enabled.protocols": f"{_LEAVE_OUT}TLS 1.2 and 1.3 are supported",
    "ssl.cipher.suites": f"{_LEAVE_OUT}OpenSSL's selection is used",
    "sasl.plain.username": "write 'sasl.username'",
    "sasl.plain.password": "write 'sasl.password'",
    "sasl.oauth.token.provider": "write 'sasl.oauthbearer.token.provider', a function that returns a token",
    "oauth.cb": "write 'sasl.oauthbearer.token.provider', a function that returns a token",
    "sasl.client.callback.handler.class": f"{_LEAVE_OUT}classes of Java's client do not run here",
    "sasl.oauthbearer.config": "write 'sasl.oauthbearer.token.provider', a function that returns a token",
    "sasl.kerberos.service.name": "GSSAPI is not supported; use SCRAM-SHA-512 or OAUTHBEARER",
}
"""By dotted name: what to do instead."""

_CONTEXT: Final = "write `{keyword} {kind}(...) as {name}:`, which opens and closes it"
_COMMON_METHODS: Final[Mapping[str, str]] = {
    "start": _CONTEXT,
    "stop": _CONTEXT,
    "bootstrap_connected": "{await_}admin.describe_cluster() asks the brokers; so does the first call of any client",
}
METHODS: Final[Mapping[str, Mapping[str, str]]] = {
    "Producer": {
        "produce": "write producer.send(topic, value, key=...), which returns a future",
        "poll": "leave it out: the futures of send() are completed in the background",
        "send_and_wait": "write {wait}",
        "send_batch": "call send() for each record: they are batched by linger.ms and batch.size",
    },
    "Consumer": {
        "consume": "write {await_}consumer.poll(timeout_ms, max_records), which returns a list",
        "getone": "write {await_}consumer.poll(timeout_ms, 1), or iterate over the consumer",
        "getmany": "write {await_}consumer.poll(timeout_ms, max_records), which returns one list for all partitions",
        "unsubscribe": "close the consumer, and create another one",
        "list_topics": "write {await_}admin.list_topics() with an Admin",
        "topics": "write {await_}admin.list_topics() with an Admin",
    },
    "Admin": {
        "list_consumer_groups": "write {await_}admin.list_groups()",
        "describe_consumer_groups": "write {await_}admin.describe_groups([...])",
        "list_consumer_group_offsets": "write {await_}admin.list_group_offsets(group)",
        "delete_consumer_groups": "write {await_}admin.delete_groups([...])",
        "incremental_alter_configs": "write {await_}admin.alter_configs(topic, {{name: value}})",
    },
}
CLASSES: Final[Mapping[str, str]] = {
    "KafkaProducer": "Producer",
    "KafkaConsumer": "Consumer",
    "KafkaAdminClient": "Admin",
    "AdminClient": "Admin",
    "AIOKafkaProducer": "Producer",
    "AIOKafkaConsumer": "Consumer",
    "AIOKafkaAdminClient": "Admin",
}


def setting_instead(name: str) -> str | None:
    """The replacement of another client's setting, by its dotted name."""
    return SETTINGS.get(name)


def missing_method(client: Any, name: str) -> AttributeError:
    """The error for an attribute that other Kafka clients have and this one lacks; it names the replacement."""
    kind = type(client).__name__
    advice = {**_COMMON_METHODS, **METHODS.get(kind, {})}.get(name)
    text = f"{kind!r} object has no attribute {name!r}"
    if advice is None:
        return AttributeError(text, name=name, obj=client)
    is_async = hasattr(client, "__aenter__")
    hint = advice.format(
        kind=kind,
        name=kind.lower(),
        keyword="async with" if is_async else "with",
        await_="await " if is_async else "",
        wait="await producer.send(...)" if is_async else "producer.send(...).result()",
    )
    return AttributeError(f"{text}; {hint}", name=name, obj=client)


def missing_class(module: str, name: str) -> AttributeError:
    """The error for a name that a module of the client does not have."""
    text = f"module {module!r} has no attribute {name!r}"
    return AttributeError(f"{text}; write {CLASSES[name]}" if name in CLASSES else text)
