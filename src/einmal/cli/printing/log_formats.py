"""Log lines as text, and as JSON: an object a line, with the event's name, its fields and its sentence."""

from __future__ import annotations

import json
import logging

from einmal.event_log import event_of, fields_of


class TextFormatter(logging.Formatter):
    """The sentence, then the fields that it does not contain."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        fields = fields_of(record)
        others = [f"{name}={value}" for name, value in fields.items() if f"%({name})" not in str(record.msg)]
        return " ".join((super().format(record), *others))


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event_of(record),
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
