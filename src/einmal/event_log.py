"""Log lines of events: each has a stable name, a sentence for people, and its values as fields.

``log = EventLog(__name__)``, then ``log.info("broker_unfenced", "broker %(broker)d is unfenced", broker=1)``. As text a
line is the sentence, as JSON it has the name and the fields besides. Names and fields are a contract:
docs/log-events.md lists them all.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Final

LENGTH_MAX: Final = 2_000
"""Maximum length of a sentence, and of a field as JSON: clients choose what is in them."""
OTHER: Final = "other"
"""The name of lines that other libraries log."""


class EventLog:
    """The logger of a module."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def is_on(self, level: int) -> bool:
        """Whether lines of this level are wanted: for what happens too often to prepare a line that nobody reads."""
        return self._logger.isEnabledFor(level)

    def debug(self, event: str, sentence: str, /, *, exc_info: BaseException | None = None, **fields: object) -> None:
        self._log(logging.DEBUG, event, sentence, exc_info, fields)

    def info(self, event: str, sentence: str, /, **fields: object) -> None:
        self._log(logging.INFO, event, sentence, None, fields)

    def warning(self, event: str, sentence: str, /, **fields: object) -> None:
        self._log(logging.WARNING, event, sentence, None, fields)

    def error(self, event: str, sentence: str, /, *, exc_info: BaseException | None = None, **fields: object) -> None:
        self._log(logging.ERROR, event, sentence, exc_info, fields)

    def _log(
        self, level: int, event: str, sentence: str, exc_info: BaseException | None, fields: Mapping[str, object]
    ) -> None:
        """logging fills the sentence in by name, because its only argument is a mapping."""
        values = (fields,) if fields else ()
        self._logger.log(
            level, sentence, *values, exc_info=exc_info, extra={"event": event, "fields": fields}, stacklevel=3
        )


def event_of(record: logging.LogRecord) -> str:
    event = getattr(record, "event", OTHER)
    return event if isinstance(event, str) else OTHER


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Values that JSON knows, bounded; others, such as errors and partitions, as text."""
    fields: Mapping[str, object] = getattr(record, "fields", {})
    return {name: _plain(value) for name, value in fields.items()}


def shortened(text: str) -> str:
    return text if len(text) <= LENGTH_MAX else f"{text[:LENGTH_MAX]}... ({len(text)} characters)"


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    # A named tuple, such as a partition, is one value.
    if type(value) in (list, tuple, dict) and len(json.dumps(value, default=str)) <= LENGTH_MAX:
        return value
    return shortened(str(value))
