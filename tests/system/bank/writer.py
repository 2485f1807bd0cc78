"""The writer: moves money between a topic and PostgreSQL until SIGTERM, or until it is killed.

    python -m tests.system.bank.writer MODE BOOTSTRAP URL SEED [STEP COUNT]

With STEP it kills itself with -9 when it has come to that step COUNT times. An error of any kind ends it: what it has
left, the next one decides. Modes: ``two-phase``, and the two ways to do without, which differ in what they commit
first.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from einmal.client import PreparedTxnState, Producer
from einmal.client.errors import KafkaError
from tests.system.bank.database import ACCOUNTS, NAME, Database, Replaced, Transfer
from tests.system.bank.events import PARTITIONS, TOPIC, Event

TWO_PHASE: Final = "two-phase"
DATABASE_FIRST: Final = "database-first"
TOPIC_FIRST: Final = "topic-first"
MODES: Final = (TWO_PHASE, DATABASE_FIRST, TOPIC_FIRST)
RECOVERY: Final = ("initialized", "acquired", "recovered")
STEPS: Final = (*RECOVERY, "begun", "sent", "prepared", "between", "ended")
"""``between``: after the first of the two commits, before the second."""
_PAUSE_S: Final = 0.02
_CONNECT_S: Final = 60.0

Reached = Callable[[str], None]


class Writer:
    def __init__(self, mode: str, producer: Producer, database: Database, seed: int, reached: Reached) -> None:
        self._mode = mode
        self._producer = producer
        self._database = database
        self._chance = random.Random(seed)
        self._incarnation = f"{os.getpid()}-{seed}"
        self._reached = reached
        self._epoch = self._number = 0

    def recover(self) -> None:
        """Acquire Kafka's name, then the database's; end what the predecessor has left as the database decides."""
        self._producer.init_transactions(keep_prepared_txn=self._mode == TWO_PHASE)
        self._reached("initialized")
        self._epoch, self._number, prepared = self._database.acquire()
        self._reached("acquired")
        if self._mode == TWO_PHASE:
            self._producer.complete_transaction(PreparedTxnState.parse(prepared))
        self._reached("recovered")

    def write(self) -> None:
        """One transaction, which gets the next number."""
        transfers = list(self._transfers())
        number = self._number + 1
        self._producer.begin_transaction()
        self._reached("begun")
        sent = []
        for partition in range(PARTITIONS):
            here = [each for each in transfers if each.topic_account % PARTITIONS == partition]
            for index, each in enumerate(here):
                event = Event(number, index, len(here), each.transfer, each.topic_account, each.delta)
                sent.append(self._producer.send(TOPIC, event.encode(), partition=partition))
        self._reached("sent")
        if self._mode == TWO_PHASE:
            self._commit_together(number, transfers)
        else:
            for result in sent:
                result.result()
            self._commit_one_after_the_other(number, transfers)
        self._number = number
        self._reached("ended")

    def _commit_together(self, number: int, transfers: Sequence[Transfer]) -> None:
        state = self._producer.prepare_transaction()
        self._reached("prepared")
        self._database.commit(self._epoch, number, transfers, str(state))
        self._reached("between")
        self._producer.complete_transaction(state)

    def _commit_one_after_the_other(self, number: int, transfers: Sequence[Transfer]) -> None:
        self._reached("prepared")
        if self._mode == TOPIC_FIRST:
            self._producer.commit_transaction()
            self._reached("between")
        self._database.commit(self._epoch, number, transfers, "")
        if self._mode == DATABASE_FIRST:
            self._reached("between")
            self._producer.commit_transaction()

    def _transfers(self) -> Iterator[Transfer]:
        """Others at each attempt: nothing can be derived again."""
        for partition in range(PARTITIONS):
            for index in range(self._chance.randint(1, 3)):
                yield Transfer(
                    f"{self._incarnation}-{self._chance.getrandbits(48):012x}-{partition}-{index}",
                    self._chance.randrange(partition, ACCOUNTS, PARTITIONS),
                    self._chance.randrange(ACCOUNTS),
                    self._chance.choice((-1, 1)) * self._chance.randint(1, 50),
                )


def dying(step: str, count: int) -> Reached:
    """Kills this process with -9 when it has come to this step so many times; steps of the recovery: once."""
    left = 1 if step in RECOVERY else count

    def reached(name: str) -> None:
        nonlocal left
        if name == step:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return reached


@contextmanager
def _connected(url: str) -> Iterator[Database]:
    deadline = time.monotonic() + _CONNECT_S
    while True:
        try:
            database = Database(url)
            break
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    try:
        yield database
    finally:
        database.close()


def main() -> int:
    mode, bootstrap, url, seed = sys.argv[1:5]
    step, count = (sys.argv[5], int(sys.argv[6])) if len(sys.argv) > 5 else ("", 0)
    stopped = False

    def stop(_signal: int, _frame: object) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "transactional.id": NAME, "linger.ms": 0}
    if mode == TWO_PHASE:
        settings["transaction.two.phase.commit.enable"] = "true"
    try:
        with Producer(settings) as producer, _connected(url) as database:
            chance = random.Random(~int(seed))
            writer = Writer(mode, producer, database, int(seed), dying(step, count))
            writer.recover()
            while not stopped:
                writer.write()
                time.sleep(chance.uniform(0, _PAUSE_S))
    except (KafkaError, psycopg.Error, Replaced) as error:
        print(f"{seed}: {type(error).__name__}: {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
