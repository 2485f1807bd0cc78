"""Transfer money from accounts in SQLite to wallets in a topic: each transfer in both, or in neither (KIP-939).

Transfer N is always the same one; it is refused if its account has too little. Kill the program, or the broker, at any
moment and run it again: it ends the open transfer, and continues. ``--die-after`` is a kill -9 after a step.
"""

import argparse
import os
import random
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from examples.program import run

from einmal.client import PreparedTxnState, Producer

WRITER = "transfers"
TOPIC = "wallets"
ACCOUNTS = tuple(f"account-{number}" for number in range(5))
BALANCE = 1_000
STEPS = ("sent", "prepared", "stored", "completed")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, balance INTEGER NOT NULL CHECK (balance >= 0));
CREATE TABLE IF NOT EXISTS transfers (number INTEGER PRIMARY KEY, account TEXT NOT NULL, amount INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS writers (name TEXT PRIMARY KEY, epoch INTEGER NOT NULL, prepared TEXT NOT NULL);
"""


class Replaced(Exception):
    """Another instance has acquired the database. It decides about the transaction of this one."""


class Bank:
    """The database. The row in ``writers`` has the epoch that may commit, and the last committed transaction."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.executescript(_SCHEMA)
        self._epoch = 0
        with self._transaction():
            for name in ACCOUNTS:
                self._database.execute("INSERT OR IGNORE INTO accounts VALUES (?, ?)", (name, BALANCE))

    def acquire(self) -> PreparedTxnState:
        """Fence every earlier instance. From now on the state that is returned here is final."""
        with self._transaction():
            self._database.execute("INSERT OR IGNORE INTO writers VALUES (?, 0, '')", (WRITER,))
            self._database.execute("UPDATE writers SET epoch = epoch + 1 WHERE name = ?", (WRITER,))
            self._epoch, prepared = self._writer()
        return PreparedTxnState.parse(prepared)

    def next_number(self) -> int:
        """Of the first transfer that is neither made nor refused."""
        (number,) = self._database.execute("SELECT coalesce(max(number), 0) + 1 FROM transfers").fetchone()
        return int(number)

    def debit(self, number: int, account: str, amount: int, prepared: PreparedTxnState) -> None:
        """The database's part of a transfer, in one commit with the topic's. Raises IntegrityError, Replaced."""
        with self._transaction():
            self._check()
            self._database.execute("UPDATE accounts SET balance = balance - ? WHERE name = ?", (amount, account))
            self._database.execute("INSERT INTO transfers VALUES (?, ?, ?)", (number, account, amount))
            self._database.execute("UPDATE writers SET prepared = ? WHERE name = ?", (str(prepared), WRITER))

    def refuse(self, number: int, account: str) -> None:
        """Nothing is transferred. Raises Replaced."""
        with self._transaction():
            self._check()
            self._database.execute("INSERT INTO transfers VALUES (?, ?, 0)", (number, account))

    def _check(self) -> None:
        if self._writer()[0] != self._epoch:
            raise Replaced

    def _writer(self) -> tuple[int, str]:
        epoch, prepared = self._database.execute(
            "SELECT epoch, prepared FROM writers WHERE name = ?", (WRITER,)
        ).fetchone()
        return int(epoch), str(prepared)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise


def new_producer(brokers: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": brokers,
            "transactional.id": WRITER,
            "transaction.two.phase.commit.enable": "true",
        }
    )


def recover(bank: Bank, producer: Producer) -> None:
    """End what the predecessor left: commit it if the database has committed it, else abort it."""
    producer.init_transactions(keep_prepared_txn=True)
    producer.complete_transaction(bank.acquire())


def transfer(bank: Bank, producer: Producer, number: int, reached: Callable[[str], None]) -> None:
    source = random.Random(number)
    account, amount = source.choice(ACCOUNTS), source.randint(1, 60)
    producer.begin_transaction()
    producer.send(TOPIC, key=account, value=str(amount))
    reached("sent")
    prepared = producer.prepare_transaction()
    reached("prepared")
    try:
        bank.debit(number, account, amount, prepared)
    except sqlite3.IntegrityError:
        producer.abort_transaction()
        bank.refuse(number, account)
        return
    reached("stored")
    producer.complete_transaction(prepared)
    reached("completed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    parser.add_argument("--count", type=int, default=200, help="Transfers in all, with those of earlier runs.")
    parser.add_argument("--die-after", choices=STEPS, help="The step at which the program kills itself.")
    parser.add_argument("--at", type=int, default=1, help="The transfer at which it does so.")
    parser.add_argument("--brokers", default=os.environ.get("KAFKA_BROKERS", "localhost:9092"))
    options = parser.parse_args()
    bank = Bank(options.database)
    with new_producer(options.brokers) as producer:
        recover(bank, producer)
        while (number := bank.next_number()) <= options.count:

            def reached(step: str, number: int = number) -> None:
                if (step, number) == (options.die_after, options.at):
                    os.kill(os.getpid(), signal.SIGKILL)

            transfer(bank, producer, number, reached)
    print(f"{options.count} transfers are made or refused")


if __name__ == "__main__":
    run(main)
