"""The line about options that are accepted and change nothing, of every way to read and to write."""

from __future__ import annotations

from collections.abc import Sequence

from einmal.event_log import EventLog

_logger = EventLog(__name__)


def log_without_effect(names: Sequence[str]) -> None:
    """Log these options in one line; nothing where there are none."""
    if names:
        _logger.warning("options_without_effect", "options without effect here: %(options)s", options=", ".join(names))
