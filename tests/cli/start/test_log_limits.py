"""What clients cause is logged, and cannot flood the log."""

import io
import logging

from einmal.cli.start.log_limits import LINES_MAX, WINDOW_SECONDS, LimitedHandler
from einmal.event_log import LENGTH_MAX


def log(handler: LimitedHandler, text: str, *values: object, at: float = 0.0) -> None:
    record = logging.LogRecord("einmal", logging.WARNING, "", 0, text, values, None)
    record.created = at
    handler.handle(record)


def test_similar_lines_are_suppressed_and_counted() -> None:
    stream = io.StringIO()
    handler = LimitedHandler(stream)
    for number in range(LINES_MAX + 30):
        log(handler, "connection closed: %s", number)
    log(handler, "another line")
    assert len(stream.getvalue().splitlines()) == LINES_MAX + 1
    log(handler, "a later line", at=WINDOW_SECONDS + 1)
    assert stream.getvalue().splitlines()[-2:] == ["30 similar lines suppressed: connection closed: %s", "a later line"]


def test_lines_of_a_kind_are_written_again_in_the_next_window() -> None:
    stream = io.StringIO()
    handler = LimitedHandler(stream)
    for number in range(LINES_MAX + 1):
        log(handler, "closed %s", number)
    log(handler, "closed %s", "again", at=WINDOW_SECONDS + 1)
    assert stream.getvalue().splitlines()[-1] == "closed again"


def test_a_long_line_is_cut() -> None:
    stream = io.StringIO()
    log(LimitedHandler(stream), "no topic %s", "x" * 1_000_000)
    assert len(stream.getvalue()) < LENGTH_MAX + 100


def test_lines_that_are_all_different_do_not_grow_the_memory() -> None:
    handler = LimitedHandler(io.StringIO())
    for number in range(5_000):
        log(handler, f"kind {number}")
    assert len(handler._kinds) <= 1_000
