"""Processes of workloads whose clients are of one library, for a real cluster."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import einmal
from einmal.client.config import AdminSettings, parse
from einmal.client.errors import ConfigError
from einmal.extras import install_command
from einmal.local.apache_kafka import KafkaJars
from einmal.security.tls import tls_context
from einmal.workloads.process import WorkloadConsumer, WorkloadProducer

Opened = Callable[[Mapping[str, Any], Mapping[str, Any]], Any]
_MODULES: Final[Mapping[str, tuple[str, str, str]]] = {
    "confluent-kafka": ("confluent", "ConfluentProducer", "ConfluentConsumer"),
    "aiokafka": ("aio_kafka", "AiokafkaProducer", "AiokafkaConsumer"),
    "kafka-python": ("kafka_python", "KafkaPythonProducer", "KafkaPythonConsumer"),
}
OWN: Final = "einmal"
JAVA: Final = "java"
CLIENTS: Final = (OWN, *_MODULES, JAVA)
_EXTRAS: Final = {"confluent-kafka": "bench", JAVA: "spark"}
_BOOTSTRAP_MS: Final = 60_000
"""Faults hit brokers before a client has connected, too."""


class ClientMissing(Exception):
    """The package of a client is not installed. ``str()`` names it, ``hint`` installs it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the client {name} is not installed")
        self.hint = install_command(_EXTRAS[name]) if name in _EXTRAS else f"pip install {name}"


@dataclass(frozen=True, slots=True)
class JavaLibrary:
    """Apache Kafka's own clients, and the program that runs them."""

    jars: KafkaJars
    java: Path


@dataclass(frozen=True, slots=True)
class ClientLibrary:
    """A library, and the configuration of its clients. ``close``: called after the last of them."""

    name: str
    version: str
    open_producer: Opened
    open_consumer: Opened
    config: Mapping[str, Any]
    close: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True)
class LibraryProcess:
    """``library``: of all clients of this process."""

    name: str
    number: int
    random: random.Random
    library: ClientLibrary

    def producer(self, **settings: Any) -> WorkloadProducer:
        producer: WorkloadProducer = self.library.open_producer(self.library.config, settings)
        return producer

    def consumer(self, **settings: Any) -> WorkloadConsumer:
        consumer: WorkloadConsumer = self.library.open_consumer(self.library.config, settings)
        return consumer


def library(name: str, config: Mapping[str, Any], java: JavaLibrary | None = None) -> ClientLibrary:
    """``config``: settings of connections, under Kafka's names. ``java``: needed for the client of this name. Raises
    ClientMissing, ConfigError, SecuritySettingError."""
    if name == OWN:
        from einmal.client.aio import Consumer, Producer

        def open_producer(config: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
            return Producer({**config}, **settings)

        def open_consumer(config: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
            return Consumer({**config}, **settings)

        own = {**config, "bootstrap.timeout.ms": _BOOTSTRAP_MS}
        return ClientLibrary(name, einmal.__version__, open_producer, open_consumer, own)
    if name == JAVA:
        assert java is not None, "the command asks for the library"
        return _java(config, java)
    module_name, producer, consumer = _MODULES[name]
    try:
        module = importlib.import_module(f"einmal.verify.clients.{module_name}")
    except ModuleNotFoundError as error:
        raise ClientMissing(name) from error
    settings = _for_librdkafka(config) if name == "confluent-kafka" else _for_python(config, name)
    return ClientLibrary(name, metadata.version(name), getattr(module, producer), getattr(module, consumer), settings)


def _java(config: Mapping[str, Any], library: JavaLibrary) -> ClientLibrary:
    """Raises ClientMissing, ConfigError, SecuritySettingError."""
    try:
        from einmal.verify.clients.java import JavaConsumer, JavaProducer, Jvm, java_settings
    except ModuleNotFoundError as error:
        raise ClientMissing(JAVA) from error
    settings = java_settings(config)
    jvm = Jvm(library.java, library.jars.folder)
    version = library.jars.version
    return ClientLibrary(
        JAVA, version, partial(JavaProducer, jvm), partial(JavaConsumer, jvm), settings, close=jvm.close
    )


def _for_librdkafka(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "default.api.timeout.ms"}


def _for_python(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    settings = parse(AdminSettings, config, {})
    security = settings.security
    options: dict[str, Any] = {
        "bootstrap_servers": settings.bootstrap_servers.split(","),
        "security_protocol": security.protocol,
    }
    if name == "kafka-python":
        options["bootstrap_timeout_ms"] = _BOOTSTRAP_MS
    if security.tls is not None:
        options["ssl_context"] = tls_context(security.tls)
    if (sasl := security.sasl) is not None:
        if sasl.token is not None:
            raise ConfigError(
                meaning=f"einmal verify does not support OAUTHBEARER with {name}",
                what_to_do="use --client einmal or confluent-kafka",
            )
        user = "sasl_plain_username"
        options |= {
            "sasl_mechanism": sasl.mechanism,
            user: sasl.username,
            "sasl_plain_password": sasl.password.reveal(),
        }
    return options
