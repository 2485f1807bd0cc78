"""A replication slot is created once every transaction has ended that is running then, however long that takes."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

from einmal.ingest.postgresql.session import SourceSession
from einmal.ingest.postgresql.slot_checks import PLUGIN
from einmal.ingest.postgresql.snapshot import newest_transaction, waited_for
from einmal.ingest.source import SourceFailed, SourceRefused

_CREATING: Final = "creating the slot"
_NAMED_S: Final = 2.0
"""Until the first transactions are named that it waits for; doubled with each further notice."""
_CANCEL_S: Final = 0.2


def created_slot(session: SourceSession, watching: SourceSession, slot: str) -> Generator[str, None, None]:
    """Create a slot in ``session``; yield who it waits for, when that changes. Raises SourceFailed, SourceRefused.

    ``watching``: another session, which looks meanwhile, and is closed in the end.
    """
    with ThreadPoolExecutor(1) as pool:
        creating = pool.submit(_create, session, slot)
        named, pause_s = "", _NAMED_S
        running = _Running(watching)
        try:
            while not _is_done(creating, pause_s):
                if (who := running.waited_for()) and who != named:
                    named = who
                    pause_s *= 2
                    yield who
            creating.result()
        finally:
            # The caller may wait no longer.
            while not _is_done(creating, 0.0):
                session.cancel()
                _is_done(creating, _CANCEL_S)
            watching.close()


class _Running:
    """The transactions that were running at a time, until all of them have ended: then at another time."""

    def __init__(self, watching: SourceSession) -> None:
        self._watching = watching
        self._newest: int | None = None

    def waited_for(self) -> str | None:
        try:
            if self._newest is None:
                self._newest = newest_transaction(self._watching)
            who = waited_for(self._watching, self._newest)
        except (SourceFailed, SourceRefused):
            # The slot can be created without a second connection.
            return None
        if who is None:
            self._newest = None
        return who


def _is_done(creating: Future[None], timeout_s: float) -> bool:
    return bool(wait([creating], timeout_s).done)


def _create(session: SourceSession, slot: str) -> None:
    session.begin(_CREATING)
    try:
        # A wait that is broken off begins anew, and where transactions overlap would never end.
        session.rows(_CREATING, "SET LOCAL lock_timeout = 0")
        session.rows(_CREATING, "SELECT pg_create_logical_replication_slot(%s, %s)", (slot, PLUGIN))
        session.commit(_CREATING)
    finally:
        session.rollback()
