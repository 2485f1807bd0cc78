"""Log lines of a broker are bounded: clients cause many of them, and choose what is in them.

Of lines with the same text before its values are filled in, a limited number is written per window of time; the next
one reports how many were not. If no such line follows, the next line of any kind triggers the report. Long lines are
truncated.
"""

from __future__ import annotations

import logging
from typing import IO, Final

from einmal.event_log import LENGTH_MAX, shortened

LINES_MAX: Final = 20
"""Maximum number of lines of a kind, in a window."""
WINDOW_SECONDS: Final = 10.0
_KINDS_MAX: Final = 1_000
_SUPPRESSED: Final = "%(count)d similar lines suppressed: %(text)s"


class _Kind:
    """Lines of one origin and text. ``suppressed`` since the last one that was written."""

    __slots__ = ("began", "count", "suppressed")

    def __init__(self, began: float) -> None:
        self.began = began
        self.count = 0
        self.suppressed = 0


class LimitedHandler(logging.StreamHandler[IO[str]]):
    """Writes to a stream what its limits let through. Time is that of the records."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(stream)
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def handle(self, record: logging.LogRecord) -> bool:
        """Whether the line was written."""
        self.acquire()
        try:
            self._make_up(record.created)
            kind = self._kind(record)
            kind.count += 1
            if kind.count > LINES_MAX:
                kind.suppressed += 1
                return False
            self._write(record)
        finally:
            self.release()
        return True

    def _kind(self, record: logging.LogRecord) -> _Kind:
        key = (record.name, str(record.msg)[:LENGTH_MAX])
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= _KINDS_MAX:
                self._kinds.clear()
            kind = self._kinds[key] = _Kind(record.created)
        return kind

    def _make_up(self, now: float) -> None:
        """Report what was not written in windows that are over."""
        over = [(key, kind) for key, kind in self._kinds.items() if now - kind.began >= WINDOW_SECONDS]
        for key, kind in over:
            del self._kinds[key]
            if kind.suppressed:
                name, text = key
                fields = {"count": kind.suppressed, "text": text[:200]}
                line = {"name": name, "levelno": logging.WARNING, "levelname": "WARNING", "msg": _SUPPRESSED}
                event = {"args": fields, "event": "similar_lines_suppressed", "fields": fields}
                self._write(logging.makeLogRecord(line | event))

    def _write(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if len(message) > LENGTH_MAX:
            record.msg, record.args = shortened(message), None
        self.emit(record)
