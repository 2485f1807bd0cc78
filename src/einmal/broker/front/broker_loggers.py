"""Levels of this process's loggers, as DescribeConfigs and IncrementalAlterConfigs know them (KIP-412).

Kafka's resource BROKER_LOGGER. A logger is a module or a package of einmal, or ``root``; one without a level of its own
has that of the next package above it. Levels are not kept: the next start has those of its command line.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from einmal.event_log import EventLog
from einmal.metadata.configs import APPEND, DELETE, SUBTRACT, ConfigChange
from einmal.metadata.topics import TopicResult
from einmal.types import ErrorCode
from einmal.wire.api.describe_configs import DescribeConfigsResourceResult

log = EventLog(__name__)

BROKER_LOGGER_RESOURCE: Final = 8
_ROOT: Final = "root"
_OURS: Final = "einmal"
_DYNAMIC_BROKER_LOGGER: Final = 6
_LEVELS: Final[Mapping[str, int]] = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
"""Kafka's names, from the lowest to the highest. Nothing is logged at TRACE: it is as DEBUG."""
_NOT_ALLOWED: Final = {APPEND: "APPEND", SUBTRACT: "SUBTRACT"}


def describe_loggers(names: Collection[str] | None) -> list[DescribeConfigsResourceResult]:
    """Return loggers with the levels that hold. ``names`` None: all."""
    names = None if names is None else frozenset(names)
    return [
        DescribeConfigsResourceResult(
            name=name, value=_level_of(name), read_only=False, config_source=_DYNAMIC_BROKER_LOGGER, is_sensitive=False
        )
        for name in _loggers()
        if names is None or name in names
    ]


def alter_loggers(changes: Sequence[ConfigChange], *, validate_only: bool) -> TopicResult:
    """Set levels, or return loggers to that of the package above: all of the changes, or none where one is refused."""
    known = frozenset(_loggers())
    for change in changes:
        if (refused := _refusal(change, known)) is not None:
            return refused
    for change in () if validate_only else changes:
        _alter(change)
    return TopicResult(name=None)


def _refusal(change: ConfigChange, known: frozenset[str]) -> TopicResult | None:
    """In Apache Kafka's words."""
    name, level = change.name, change.value
    if change.operation in _NOT_ALLOWED:
        message = f"{_NOT_ALLOWED[change.operation]} operation is not allowed for the BROKER_LOGGER resource"
        return TopicResult(name=None, error=ErrorCode.invalid_request, message=message)
    if name not in known:
        return TopicResult(name=None, error=ErrorCode.invalid_config, message=f"Logger {name} does not exist!")
    if change.operation == DELETE:
        if name != _ROOT:
            return None
        message = "Removing the log level of the root logger is not allowed"
        return TopicResult(name=None, error=ErrorCode.invalid_request, message=message)
    if level in _LEVELS:
        return None
    message = (
        f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
        f"Valid log levels are {', '.join(sorted(_LEVELS))}"
    )
    return TopicResult(name=None, error=ErrorCode.invalid_config, message=message)


def _alter(change: ConfigChange) -> None:
    logger = _logger(change.name)
    before = logger.level
    wanted = logging.NOTSET if change.operation == DELETE or change.value is None else _LEVELS[change.value]
    logger.setLevel(wanted)
    value = _level_of(change.name)
    if not log.is_on(logging.WARNING):
        # A change that silences this log does not silence its own line.
        logger.setLevel(before)
    log.warning("log_level_changed", "the log level of %(name)s is now %(value)s", name=change.name, value=value)
    logger.setLevel(wanted)


def _loggers() -> list[str]:
    ours = [name for name in list(logging.root.manager.loggerDict) if name.partition(".")[0] == _OURS]
    return [_ROOT, *sorted(ours)]


def _logger(name: str) -> logging.Logger:
    return logging.root if name == _ROOT else logging.getLogger(name)


def _level_of(name: str) -> str:
    """The lowest level of which lines are logged."""
    effective = _logger(name).getEffectiveLevel()
    return next((level for level, number in _LEVELS.items() if number >= effective), "FATAL")
