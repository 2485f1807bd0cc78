"""Settings of a broker by Kafka's key: of a file (properties or TOML), of the environment, of the command line.

Later ones win, as in Apache Kafka's container image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from einmal.broker.config import (
    SETTINGS,
    VARIABLE_PREFIX,
    ConfigError,
    key_of_variable,
    parse_assignments,
    parse_properties,
)
from einmal.cli.clients import BROKERS_VARIABLES
from einmal.cli.declarations import why_unreadable
from einmal.event_log import EventLog

log = EventLog(__name__)

_NO_SETTINGS: Final = frozenset(
    {
        *BROKERS_VARIABLES,
        *("KAFKA_BOOTSTRAP_SERVERS", "KAFKA_BOOTSTRAP_SERVER", "KAFKA_HOME", "KAFKA_VERSION", "KAFKA_DEBUG"),
        *("KAFKA_HEAP_OPTS", "KAFKA_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS", "KAFKA_GC_LOG_OPTS"),
        *("KAFKA_LOG4J_OPTS", "KAFKA_LOG4J_ROOT_LOGLEVEL", "KAFKA_LOG4J_LOGGERS", "KAFKA_TOOLS_LOG4J_LOGLEVEL"),
        *("KAFKA_JMX_OPTS", "KAFKA_JMX_PORT", "KAFKA_JMX_HOSTNAME"),
    }
)
"""Variables of clients, of Apache Kafka's scripts and of its image."""
_OF_CLIENTS: Final = ("security.", "sasl.", "ssl.")
_WITHOUT_A_FILE: Final[Mapping[str, str]] = {"group.initial.rebalance.delay.ms": "0"}
"""As in the file that comes with Apache Kafka: who tries a broker out does not wait for more members of a group."""


class StartError(Exception):
    """A failed start: what went wrong, in a sentence, and what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def values_of(file: Path | None, environment: Mapping[str, str], assignments: Sequence[str]) -> dict[str, str]:
    """Those of the file, above them those of the environment (logged), above them the assignments ``KEY=VALUE``.

    Raises StartError, ConfigError.
    """
    values = dict(_WITHOUT_A_FILE) if file is None else _of_file(file)
    variables = _of_environment(environment)
    if variables:
        names = ", ".join(sorted(variables))
        text = "settings from the environment, which precede those of a file: %(names)s"
        log.info("environment_settings", text, names=names)
    return values | {key: environment[name] for name, key in variables.items()} | parse_assignments(assignments)


def _of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The key of each variable that sets something."""
    variables = {
        name: key_of_variable(name)
        for name in environment
        if name.startswith(VARIABLE_PREFIX) and name not in _NO_SETTINGS
    }
    if any(key.startswith(_OF_CLIENTS) and key not in SETTINGS for key in variables.values()):
        from einmal.client.security_settings import SECURITY_NAMES

        # Commands beside the broker read these, such as $KAFKA_SASL_PASSWORD.
        return {name: key for name, key in variables.items() if key in SETTINGS or key not in SECURITY_NAMES}
    return variables


def _of_file(file: Path) -> dict[str, str]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(
            f"cannot read {file}: {why_unreadable(error)}",
            "pass the path of a server.properties, or of its keys in TOML",
        ) from error
    return _of_toml(file, text) if file.suffix == ".toml" else parse_properties(text)


def _of_toml(file: Path, text: str) -> dict[str, str]:
    """Dotted keys and tables are the same. Raises StartError, ConfigError."""
    from einmal.declare.document import DeclarationError, flattened, toml_tables

    try:
        values = flattened(toml_tables(text))
    except DeclarationError as error:
        raise StartError(
            f"{file}: {error}",
            'text is in quotes; where one key begins with another, so is the shorter: "max.connections" = 100',
        ) from error
    return {key: _text(file, key, value) for key, value in values.items()}


def _text(file: Path, key: str, value: Any) -> str:
    """A value as a properties file has it. Raises ConfigError."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list) and all(isinstance(member, str | int) for member in value):
        return ",".join(_text(file, key, member) for member in value)
    kinds: Mapping[type, str] = {dict: "a table", list: "a list of something else than text or numbers"}
    kind = kinds.get(type(value), "a time or date")
    raise ConfigError(f"{file}: {key} is {kind}, and must be text, a number, true or false, or a list of texts")
