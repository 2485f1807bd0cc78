"""Readers of both halves, which run while everything else is killed, and what they are promised.

The protocol under which the sums are equal at every moment: take a snapshot of the database, which has the balances
*and* the number of the last committed transaction; read the topic with ``read_committed`` up to the end of the
transaction of this number in every partition, waiting for it where it is not there yet; add up the database's balances
and the topic's deltas up to this number, and none after it.

1. In every snapshot of the database each balance is that of its entries.
2. The topic never shows a transaction that the database has not committed.
3. The sum over both is the initial one, for every snapshot.
4. The wait ends: the transaction that the database names is prepared, and its writer, or the next one, commits it.

Without a two-phase commit 2 fails where the topic is committed first, and 3 in either case.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

import psycopg

from einmal.client import Consumer
from einmal.client.errors import FatalError, KafkaError
from einmal.types import TopicPartition
from tests.system.bank.database import ACCOUNTS, INITIAL, Database
from tests.system.bank.events import PARTITIONS, TOPIC, Event, TopicHalf

TOTAL: Final = 2 * ACCOUNTS * INITIAL
PARTITION_KEYS: Final = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
_POLL_MS: Final = 100
_PAUSE_S: Final = 0.05
_WAIT_S: Final = 120.0
"""For a transaction that the database names: it ends when a writer is there again."""

T = TypeVar("T")


class Reader:
    """Compares again and again; with ``is_new`` as a new reader of the topic each time, which begins at its start."""

    def __init__(self, name: str, bootstrap: str, url: str, *, is_new: bool) -> None:
        self.name = name
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._bootstrap = bootstrap
        self._url = url
        self._is_new = is_new
        self._stopped = threading.Event()
        self._consumer: Consumer | None = None
        self._topic = TopicHalf(name)
        self._database: Database | None = None
        self.compared = 0
        """Snapshots whose sum was compared."""
        self.differing = 0
        self.ahead = 0
        """Moments at which the topic showed a transaction that the database did not have."""
        self.wait_s_max = 0.0
        self.anomalies: list[str] = []
        self.torn: dict[int, None] = {}
        """Numbers of transactions that the topic lacks or repeats."""

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._compare()
                self._stopped.wait(_PAUSE_S)
        except Exception as error:  # noqa: BLE001 - a reader that died has not read what is to be shown
            self.anomalies.append(f"{self.name} died: {type(error).__name__}: {error}")
        finally:
            self._forget_topic()
            self._disconnect()

    def finish(self) -> None:
        self._stopped.set()
        self._thread.join(2 * _WAIT_S)
        assert not self._thread.is_alive(), f"{self.name} is stuck"

    # --- one comparison -----------------------------------------------------------------------------------------

    def _compare(self) -> None:
        snapshot = self._ask(Database.snapshot)
        self._read_up_to(snapshot.number)
        if snapshot.wrong_balances:
            self.anomalies.append(f"{self.name}: {snapshot.wrong_balances} balances differ from their entries")
        # The topic's accounts begin with the same balances as the database's.
        found = snapshot.total + ACCOUNTS * INITIAL + self._topic.total(snapshot.number)
        self.compared += 1
        if found != TOTAL:
            self.differing += 1
            self.anomalies.append(f"{self.name}: after transaction {snapshot.number} the sum is {found}, not {TOTAL}")
        if self._is_new:
            self._forget_topic()

    def _read_up_to(self, number: int) -> None:
        began = time.monotonic()
        while True:
            # At least once, so that transactions beyond the snapshot's are seen, too.
            self._poll()
            if self._topic.has(number):
                break
            if time.monotonic() - began > _WAIT_S:
                raise AssertionError(f"the topic does not show transaction {number}, which the database has")
        self.wait_s_max = max(self.wait_s_max, time.monotonic() - began)

    def _poll(self) -> None:
        """Read, and look whether the database has what the topic shows."""
        before = self._topic.last_number()
        try:
            for record in self._opened().poll(_POLL_MS):
                self._topic.read(record.partition, Event.decode(record.value))
        except FatalError:
            raise
        except KafkaError:
            self._stopped.wait(_PAUSE_S)
        shown = self._topic.last_number()
        if shown > before and shown > (known := self._ask(Database.number)):
            self.ahead += 1
            self.anomalies.append(f"{self.name}: the topic shows {shown}, the database has {known}")

    # --- clients ------------------------------------------------------------------------------------------------

    def _opened(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(
                {
                    "bootstrap.servers": self._bootstrap,
                    "isolation.level": "read_committed",
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": "false",
                }
            )
            self._consumer.assign(PARTITION_KEYS)
        return self._consumer

    def _forget_topic(self) -> None:
        self.anomalies += self._topic.anomalies
        self.torn |= self._topic.torn
        self._topic = TopicHalf(self.name)
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _ask(self, question: Callable[[Database], T]) -> T:
        """Again while the server is down: then it shows nothing."""
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                if self._database is None:
                    self._database = Database(self._url)
                return question(self._database)
            except psycopg.OperationalError:
                self._disconnect()
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)

    def _disconnect(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
