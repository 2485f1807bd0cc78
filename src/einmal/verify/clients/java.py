"""Producer and consumer of Apache Kafka's own library, which runs in a JVM and is called by py4j."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError, Py4JJavaError

from einmal.client.config import AdminSettings, parse
from einmal.client.errors import (
    AbortableError,
    ConfigError,
    FatalError,
    KafkaError,
    ProducerFenced,
    RetriableError,
    UnknownOutcome,
)
from einmal.client.records import ConsumerRecord, OffsetAndMetadata, RecordMetadata, positions_of
from einmal.local.apache_kafka import QUICK_JVM
from einmal.security.settings import SaslSettings, TlsSettings
from einmal.security.tls import text_of
from einmal.types import TopicPartition
from einmal.verify.clients.own_thread import OwnThread, PendingSends

_BYTES: Final = "org.apache.kafka.common.serialization.ByteArray"
_FENCED: Final = frozenset(("ProducerFencedException", "InvalidProducerEpochException"))
_ABORTABLE: Final = frozenset(
    (
        "TransactionAbortableException",
        "TransactionAbortedException",
        "CommitFailedException",
        "IllegalGenerationException",
        "UnknownMemberIdException",
        "RebalanceInProgressException",
    )
)
_FATAL: Final = frozenset(
    (
        "OutOfOrderSequenceException",
        "IllegalStateException",
        "AuthenticationException",
        "AuthorizationException",
        "UnsupportedVersionException",
    )
)
_OPTIONS: Final = ("-Xmx1g", *QUICK_JVM, "-Dorg.slf4j.simpleLogger.defaultLogLevel=off")
_CLOSE_S: Final = 10.0
_LOOK_S: Final = 0.002


class Jvm:
    """One for all clients of a run; it ends with this process at the latest."""

    def __init__(self, java: Path, jars: Path) -> None:
        """``jars``: the folder of the library. Raises ConfigError."""
        try:
            self._gateway = JavaGateway.launch_gateway(
                classpath=str(jars / "*"),
                javaopts=list(_OPTIONS),
                java_path=str(java),
                die_on_exit=True,
                enable_auth=True,
            )
        except (Py4JError, OSError, ValueError) as error:
            raise ConfigError(
                meaning=f"{java} does not start with Kafka's library: {error}",
                what_to_do="set JAVA_HOME to a Java that runs Apache Kafka 4: 17 or newer",
            ) from error
        self.classes: Any = self._gateway.jvm
        """Its packages: ``classes.java.util.HashMap``."""

    def close(self) -> None:
        """End it, whatever its clients do."""
        self._gateway.shutdown()
        process = self._gateway.java_process
        # Threads of clients would keep it from ending; the end of its input does not let them.
        process.stdin.close()
        try:
            process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @property
    def kafka(self) -> Any:
        return self.classes.org.apache.kafka

    def of_millis(self, milliseconds: int) -> Any:
        return self.classes.java.time.Duration.ofMillis(milliseconds)

    def properties(self, settings: Mapping[str, Any]) -> Any:
        """As the library's map; its booleans are Java's."""
        properties = self.classes.java.util.HashMap()
        for name, value in settings.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            properties.put(name.replace("_", "."), text)
        return properties

    def partition(self, key: TopicPartition) -> Any:
        return self.kafka.common.TopicPartition(key.topic, key.partition)

    def partitions(self, keys: Sequence[TopicPartition]) -> Any:
        partitions = self.classes.java.util.ArrayList()
        for key in keys:
            partitions.add(self.partition(key))
        return partitions

    def offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> Any:
        positions = self.classes.java.util.HashMap()
        for key, position in positions_of(offsets).items():
            positions.put(self.partition(key), self.kafka.clients.consumer.OffsetAndMetadata(position.offset))
        return positions


class JavaProducer:
    def __init__(self, jvm: Jvm, config: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self._jvm = jvm
        self._sent: deque[tuple[Any, asyncio.Future[RecordMetadata], TopicPartition]] = deque()
        """The library's futures, which end in about this order."""
        self._pending = PendingSends()
        self._producer: Any = None
        self._thread = OwnThread(_translated, self._serve)
        serializers = {"key.serializer": f"{_BYTES}Serializer", "value.serializer": f"{_BYTES}Serializer"}
        self._ready = self._thread.submit(
            lambda: self._open({**config, **settings, **serializers, "enable.idempotence": True})
        )

    def _open(self, settings: Mapping[str, Any]) -> None:
        self._producer = self._jvm.kafka.clients.producer.KafkaProducer(self._jvm.properties(settings))

    def _serve(self) -> None:
        if not self._sent or not self._sent[0][0].isDone():
            time.sleep(_LOOK_S)
            return
        self._report()

    def _report(self) -> None:
        """The result of the first future, which is waited for."""
        sent, future, key = self._sent.popleft()
        try:
            metadata = sent.get()
            self._thread.report(future, RecordMetadata(*key, metadata.offset(), metadata.timestamp()))
        except Exception as error:  # noqa: BLE001 - py4j raises errors of its own, too
            self._thread.report(future, error=error)

    def send(self, topic: str, value: str, *, partition: int) -> asyncio.Future[RecordMetadata]:
        future = self._pending.add()

        def send() -> None:
            try:
                record = self._jvm.kafka.clients.producer.ProducerRecord(topic, partition, None, value.encode())
                self._sent.append((self._producer.send(record), future, TopicPartition(topic, partition)))
            except Exception as error:  # noqa: BLE001 - as above
                self._thread.report(future, error=error)

        self._thread.submit(send)
        return future

    async def init_transactions(self) -> None:
        await self._ready
        await self._call("initTransactions")

    def begin_transaction(self) -> object:
        return self._call("beginTransaction")

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: Any, /
    ) -> None:
        await self._thread.submit(lambda: self._producer.sendOffsetsToTransaction(self._jvm.offsets(offsets), group))

    async def commit_transaction(self) -> None:
        await self._pending.commit(lambda: self._call("commitTransaction"))

    async def abort_transaction(self) -> None:
        await self._call("abortTransaction")

    def _call(self, name: str) -> asyncio.Future[Any]:
        def call() -> Any:
            return getattr(self._producer, name)()

        return self._thread.submit(call)

    async def close(self) -> None:
        def close() -> None:
            if self._producer is not None:
                self._producer.close(self._jvm.of_millis(int(_CLOSE_S * 1000)))
                while self._sent:
                    self._report()

        closed = self._thread.submit(close)
        self._thread.end()
        await asyncio.wait([closed], timeout=_CLOSE_S)


class JavaConsumer:
    """The library's consumer takes calls of one thread at a time: what others ask is kept after each poll."""

    def __init__(self, jvm: Jvm, config: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self._jvm = jvm
        self._has_group = "group_id" in settings
        self._assignment: list[TopicPartition] = []
        self._group: Any = None
        self._seeks: dict[TopicPartition, int] = {}
        self._thread = OwnThread(_translated)
        self._consumer: Any = None
        deserializers = {"key.deserializer": f"{_BYTES}Deserializer", "value.deserializer": f"{_BYTES}Deserializer"}
        self._ready = self._thread.submit(lambda: self._open({**config, **settings, **deserializers}))

    def _open(self, settings: Mapping[str, Any]) -> None:
        self._consumer = self._jvm.kafka.clients.consumer.KafkaConsumer(self._jvm.properties(settings))

    def assign(self, partitions: Sequence[TopicPartition], /) -> object:
        self._assignment = list(partitions)
        return self._thread.submit(lambda: self._consumer.assign(self._jvm.partitions(partitions)))

    def subscribe(self, topics: Sequence[str], /) -> object:
        def subscribe() -> None:
            names = self._jvm.classes.java.util.ArrayList()
            for topic in topics:
                names.add(topic)
            self._consumer.subscribe(names)

        return self._thread.submit(subscribe)

    def assignment(self) -> list[TopicPartition]:
        return self._assignment

    def group_metadata(self) -> Any:
        return self._group

    async def poll(self, timeout_ms: int) -> Sequence[ConsumerRecord]:
        await self._ready
        return await self._thread.submit(lambda: list(self._poll(timeout_ms)))

    def _poll(self, timeout_ms: int) -> Iterator[ConsumerRecord]:
        while self._seeks:
            key, offset = next(iter(self._seeks.items()))
            if key in self._assignment:
                self._consumer.seek(self._jvm.partition(key), offset)
            del self._seeks[key]
        polled = self._consumer.poll(self._jvm.of_millis(timeout_ms))
        if self._has_group:
            assigned = self._consumer.assignment()
            self._assignment = [TopicPartition(partition.topic(), partition.partition()) for partition in assigned]
            self._group = self._consumer.groupMetadata()
        for partition in polled.partitions():
            topic, number = partition.topic(), partition.partition()
            records = polled.records(partition)
            for index in range(records.size()):
                record = records.get(index)
                # No workload writes keys or headers, and each is a call.
                yield ConsumerRecord(topic, number, record.offset(), record.timestamp(), None, record.value(), ())

    def seek(self, topic_partition: TopicPartition, offset: int | OffsetAndMetadata, /) -> object:
        self._seeks[topic_partition] = offset if isinstance(offset, int) else offset.offset
        return None

    async def position(self, topic_partition: TopicPartition, /) -> int:
        return int(await self._thread.submit(lambda: self._consumer.position(self._jvm.partition(topic_partition))))

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], /) -> None:
        await self._thread.submit(lambda: self._consumer.commitSync(self._jvm.offsets(offsets)))

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata | None]:
        def committed() -> dict[TopicPartition, OffsetAndMetadata | None]:
            wanted = self._jvm.classes.java.util.HashSet(self._jvm.partitions(partitions))
            answer = self._consumer.committed(wanted)
            positions = {partition: answer.get(self._jvm.partition(partition)) for partition in partitions}
            return {
                partition: None if position is None else OffsetAndMetadata(position.offset())
                for partition, position in positions.items()
            }

        return await self._thread.submit(committed)

    async def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        await self._ready

        def ends() -> dict[TopicPartition, int]:
            answer = self._consumer.endOffsets(self._jvm.partitions(partitions))
            return {partition: int(answer.get(self._jvm.partition(partition))) for partition in partitions}

        return await self._thread.submit(ends)

    async def close(self) -> None:
        closed = self._thread.submit(lambda: self._consumer and self._consumer.close())
        self._thread.end()
        await asyncio.wait([closed], timeout=_CLOSE_S)


def java_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a connection as Java's library names them. Raises ConfigError, SecuritySettingError."""
    settings = parse(AdminSettings, config, {})
    security = settings.security
    options = {"bootstrap.servers": settings.bootstrap_servers, "security.protocol": security.protocol}
    if security.tls is not None:
        options |= _tls(security.tls)
    if security.sasl is not None:
        options |= _sasl(security.sasl)
    return options


def _tls(tls: TlsSettings) -> Iterator[tuple[str, str]]:
    if not tls.verifies_certificate:
        raise ConfigError(
            meaning="Java's client always verifies certificates",
            what_to_do="name the authority in ssl.ca.location, or use another --client",
        )
    if tls.authority is not None:
        yield "ssl.truststore.type", "PEM"
        yield "ssl.truststore.certificates", text_of(tls.authority)
    if tls.certificate is not None and tls.key is not None:
        yield "ssl.keystore.type", "PEM"
        yield "ssl.keystore.certificate.chain", text_of(tls.certificate)
        yield "ssl.keystore.key", text_of(tls.key)
        if tls.key_password is not None:
            yield "ssl.key.password", tls.key_password.reveal()
    if not tls.verifies_host:
        yield "ssl.endpoint.identification.algorithm", ""


def _sasl(sasl: SaslSettings) -> Iterator[tuple[str, str]]:
    if sasl.token is not None:
        raise ConfigError(
            meaning="einmal verify does not support OAUTHBEARER with java",
            what_to_do="use --client einmal or confluent-kafka",
        )
    kind = "plain.PlainLoginModule" if sasl.mechanism == "PLAIN" else "scram.ScramLoginModule"
    user, password = _quoted(sasl.username), _quoted(sasl.password.reveal())
    yield "sasl.mechanism", sasl.mechanism
    yield (
        "sasl.jaas.config",
        f"org.apache.kafka.common.security.{kind} required username={user} password={password};",
    )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _translated(error: Exception) -> KafkaError:
    if isinstance(error, KafkaError):
        return error
    if not isinstance(error, Py4JJavaError):
        return UnknownOutcome(detail=f"{type(error).__name__}: {error}")
    thrown = error.java_exception
    try:
        kinds = _kinds(thrown)
        if "ExecutionException" in kinds:
            thrown = thrown.getCause()
            kinds = _kinds(thrown)
        detail = str(thrown.toString())
    except Py4JError as lost:
        return UnknownOutcome(detail=f"the JVM has ended: {lost}")
    if _FENCED & kinds:
        return ProducerFenced(detail=detail)
    if _ABORTABLE & kinds:
        return AbortableError(detail=detail)
    if _FATAL & kinds:
        return FatalError(detail=detail)
    if "RetriableException" in kinds:
        return RetriableError(detail=detail)
    return UnknownOutcome(detail=detail)


def _kinds(thrown: Any) -> frozenset[str]:
    """The names of the class and of those that it extends."""
    names = []
    kind = thrown.getClass()
    while kind is not None:
        names.append(str(kind.getSimpleName()))
        kind = kind.getSuperclass()
    return frozenset(names)
