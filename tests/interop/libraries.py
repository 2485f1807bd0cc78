"""Five client libraries behind one face: write idempotently or in a transaction, read as a group, be refused.

Values are texts. A transactional write begins with a transaction that it aborts, whose record is ``ABORTED``.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
import pytest

import einmal.client
from tests.interop.apache_kafka import JVM, KafkaUnavailable, java, java_program
from tests.interop.guarded_cluster import ALICE, GuardedCluster

ABORTED: Final = "aborted"
_PATIENCE_S: Final = 180.0
Halfway = Callable[[], object]
"""Called once the first half is acknowledged; a transaction is then open."""


class Library(ABC):
    """A library as the user ``user`` of a cluster."""

    fails_over: ClassVar[bool] = True
    """Whether its transactions continue when a broker is killed."""

    def __init__(self, cluster: GuardedCluster, directory: Path, user: str = ALICE) -> None:
        self.settings: dict[str, Any] = dict(cluster.client(user))
        self.cluster = cluster
        self.directory = directory

    @abstractmethod
    def write(
        self, topic: str, values: Sequence[str], transactional_id: str | None, halfway: Halfway = lambda: None
    ) -> None:
        """Idempotently, or in a transaction that is committed."""

    @abstractmethod
    def read(self, topic: str, group: str, count: int) -> list[str]:
        """So many committed values, from the beginning, as a member of a group that then commits its positions."""

    @abstractmethod
    def refusal(self, topic: str) -> str:
        """The error of a write, in the words of the library."""


def _write_in_halves(
    producer: Any,
    produce: Callable[[Sequence[str]], None],
    values: Sequence[str],
    transactional_id: str | None,
    halfway: Halfway,
) -> None:
    """``Library.write`` with a producer whose calls take no time limits."""
    if transactional_id is not None:
        producer.init_transactions()
        producer.begin_transaction()
        produce([ABORTED])
        producer.abort_transaction()
        producer.begin_transaction()
    produce(values[::2])
    halfway()
    produce(values[1::2])
    if transactional_id is not None:
        producer.commit_transaction()


class Librdkafka(Library):
    """confluent-kafka."""

    def write(
        self, topic: str, values: Sequence[str], transactional_id: str | None, halfway: Halfway = lambda: None
    ) -> None:
        own = {"enable.idempotence": True} if transactional_id is None else {"transactional.id": transactional_id}
        producer = confluent_kafka.Producer(self.settings | own)
        outcomes: list[Any] = []

        def produce(some: Sequence[str]) -> None:
            for value in some:
                producer.produce(topic, value.encode(), on_delivery=lambda error, _: outcomes.append(error))
            assert producer.flush(_PATIENCE_S) == 0
            assert set(outcomes) <= {None}

        if transactional_id is not None:
            producer.init_transactions(_PATIENCE_S)
            producer.begin_transaction()
            produce([ABORTED])
            producer.abort_transaction(_PATIENCE_S)
            producer.begin_transaction()
        produce(values[::2])
        halfway()
        produce(values[1::2])
        if transactional_id is not None:
            producer.commit_transaction(_PATIENCE_S)

    def read(self, topic: str, group: str, count: int) -> list[str]:
        own = {"group.id": group, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        consumer = confluent_kafka.Consumer(self.settings | own | {"enable.auto.commit": False})
        found: list[str] = []
        deadline = time.monotonic() + _PATIENCE_S
        try:
            consumer.subscribe([topic])
            while len(found) < count and time.monotonic() < deadline:
                messages = consumer.consume(count, 0.5)
                found += [(each.value() or b"").decode() for each in messages if each.error() is None]
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()
        return found

    def refusal(self, topic: str) -> str:
        failed: list[Any] = []
        producer = confluent_kafka.Producer(self.settings | {"enable.idempotence": True})
        producer.produce(topic, b"refused", on_delivery=lambda error, _: failed.append(error))
        producer.flush(_PATIENCE_S)
        return str(failed[0].name())


class Aiokafka(Library):
    def __init__(self, cluster: GuardedCluster, directory: Path, user: str = ALICE) -> None:
        super().__init__(cluster, directory, user)
        self.settings = {
            "bootstrap_servers": cluster.bootstrap,
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cafile=str(cluster.ca)),
            "sasl_mechanism": self.settings["sasl.mechanism"],
            "sasl_plain_username": user,
            "sasl_plain_password": self.settings["sasl.password"],
        }

    def write(
        self, topic: str, values: Sequence[str], transactional_id: str | None, halfway: Halfway = lambda: None
    ) -> None:
        own = {"enable_idempotence": True} if transactional_id is None else {"transactional_id": transactional_id}

        async def produce(producer: Any, some: Sequence[str]) -> None:
            for sent in [await producer.send(topic, value.encode()) for value in some]:
                await sent

        async def run() -> None:
            async with aiokafka.AIOKafkaProducer(**self.settings, **own) as producer, asyncio.timeout(_PATIENCE_S):
                if transactional_id is not None:
                    await producer.begin_transaction()
                    await produce(producer, [ABORTED])
                    await producer.abort_transaction()
                    await producer.begin_transaction()
                await produce(producer, values[::2])
                await asyncio.to_thread(halfway)
                await produce(producer, values[1::2])
                if transactional_id is not None:
                    await producer.commit_transaction()

        asyncio.run(run())

    def read(self, topic: str, group: str, count: int) -> list[str]:
        own = {"group_id": group, "auto_offset_reset": "earliest", "isolation_level": "read_committed"}

        async def run() -> list[str]:
            consumer = aiokafka.AIOKafkaConsumer(topic, **self.settings, **own, enable_auto_commit=False)
            async with consumer, asyncio.timeout(_PATIENCE_S):
                found = [(await consumer.getone()).value.decode() for _ in range(count)]
                await consumer.commit()
            return found

        return asyncio.run(run())

    def refusal(self, topic: str) -> str:
        async def run() -> str:
            async with aiokafka.AIOKafkaProducer(**self.settings) as producer:
                try:
                    await producer.send_and_wait(topic, b"refused")
                except aiokafka.errors.KafkaError as error:
                    return type(error).__name__
            return "accepted"

        return asyncio.run(run())


class KafkaPython(Library):
    """3.0.12 drops the transactional request that it was about to send when its coordinator refuses the connection."""

    fails_over = False

    def __init__(self, cluster: GuardedCluster, directory: Path, user: str = ALICE) -> None:
        super().__init__(cluster, directory, user)
        self.settings = {
            "bootstrap_servers": cluster.bootstrap.split(","),
            "security_protocol": "SASL_SSL",
            "ssl_cafile": str(cluster.ca),
            "sasl_mechanism": self.settings["sasl.mechanism"],
            "sasl_plain_username": user,
            "sasl_plain_password": self.settings["sasl.password"],
        }

    def write(
        self, topic: str, values: Sequence[str], transactional_id: str | None, halfway: Halfway = lambda: None
    ) -> None:
        own = {"enable_idempotence": True} if transactional_id is None else {"transactional_id": transactional_id}
        producer = kafka.KafkaProducer(**self.settings, **own)

        def produce(some: Sequence[str]) -> None:
            for sent in [producer.send(topic, value.encode()) for value in some]:
                sent.get(_PATIENCE_S)

        try:
            _write_in_halves(producer, produce, values, transactional_id, halfway)
        finally:
            producer.close(timeout=1)

    def read(self, topic: str, group: str, count: int) -> list[str]:
        own = {"group_id": group, "auto_offset_reset": "earliest", "isolation_level": "read_committed"}
        consumer = kafka.KafkaConsumer(topic, **self.settings, **own, enable_auto_commit=False)
        found: list[str] = []
        deadline = time.monotonic() + _PATIENCE_S
        try:
            while len(found) < count and time.monotonic() < deadline:
                for records in consumer.poll(timeout_ms=500).values():
                    found += [record.value.decode() for record in records]
            consumer.commit()
        finally:
            consumer.close()
        return found

    def refusal(self, topic: str) -> str:
        producer = kafka.KafkaProducer(**self.settings, max_block_ms=20_000)
        try:
            producer.send(topic, b"refused").get(_PATIENCE_S)
        except kafka.errors.KafkaError as error:
            return type(error).__name__
        finally:
            producer.close(timeout=1)
        return "accepted"


class Ours(Library):
    def write(
        self, topic: str, values: Sequence[str], transactional_id: str | None, halfway: Halfway = lambda: None
    ) -> None:
        own = {} if transactional_id is None else {"transactional.id": transactional_id}
        with einmal.client.Producer(self.settings | own) as producer:

            def produce(some: Sequence[str]) -> None:
                for value in some:
                    producer.send(topic, value)
                producer.flush()

            _write_in_halves(producer, produce, values, transactional_id, halfway)

    def read(self, topic: str, group: str, count: int) -> list[str]:
        own = {"group.id": group, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        found: list[str] = []
        deadline = time.monotonic() + _PATIENCE_S
        with einmal.client.Consumer(self.settings | own | {"enable.auto.commit": False}) as consumer:
            consumer.subscribe([topic])
            while len(found) < count and time.monotonic() < deadline:
                found += [(record.value or b"").decode() for record in consumer.poll(500)]
            consumer.commit()
        return found

    def refusal(self, topic: str) -> str:
        with einmal.client.Producer(self.settings) as producer:
            try:
                producer.send(topic, "refused").result(_PATIENCE_S)
            except einmal.client.RequestRefused as error:
                return error.name
        return "accepted"


class JavaClient(Library):
    """Each call is a JVM. Skips its tests where there is no Java or Maven."""

    def __init__(self, cluster: GuardedCluster, directory: Path, user: str = ALICE) -> None:
        super().__init__(cluster, directory, user)
        self._file = directory / "client.properties"
        # A properties file takes a backslash for itself.
        lines = [f"{name}={value}" for name, value in cluster.java(user).items()]
        self._file.write_text("\n".join(lines))
        try:
            self._command = [java(), "-Xmx256m", *JVM, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
            self._command += java_program("Secured")
        except KafkaUnavailable as error:
            pytest.skip(str(error))

    def write(
        self, topic: str, values: Sequence[str], transactional_id: str | None, halfway: Halfway = lambda: None
    ) -> None:
        arguments = ["write", str(self._file), topic, transactional_id or "-"]
        pipe = subprocess.PIPE
        jvm = subprocess.Popen([*self._command, *arguments], stdin=pipe, stdout=pipe, text=True)
        assert jvm.stdin is not None and jvm.stdout is not None
        try:
            jvm.stdin.write("".join(f"{value}\n" for value in values[::2]))
            jvm.stdin.flush()
            for line in jvm.stdout:
                if line.strip() == values[::2][-1]:
                    break
            else:
                raise AssertionError("the JVM has ended before it was halfway")
            halfway()
            jvm.communicate("".join(f"{value}\n" for value in values[1::2]), timeout=_PATIENCE_S)
            assert jvm.returncode == 0
        finally:
            jvm.kill()
            jvm.wait()

    def _run(self, *arguments: str) -> list[str]:
        done = subprocess.run([*self._command, *arguments], capture_output=True, text=True, timeout=_PATIENCE_S)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.splitlines()

    def read(self, topic: str, group: str, count: int) -> list[str]:
        return self._run("read", str(self._file), topic, group, str(count))

    def refusal(self, topic: str) -> str:
        return self._run("refused", str(self._file), topic)[-1]


LIBRARIES: Final[dict[str, type[Library]]] = {
    "confluent-kafka": Librdkafka,
    "aiokafka": Aiokafka,
    "kafka-python": KafkaPython,
    "Java": JavaClient,
    "einmal": Ours,
}
