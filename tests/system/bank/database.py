"""The bank's half in PostgreSQL: balances, the entries behind them, and the row that decides about the topic.

``writers`` has the epoch that may commit, the number of the last committed transaction, and the name of its prepared
transaction in Kafka (``PreparedTxnState``): all in the same transaction as the entries. See docs/two-phase-commit.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import psycopg

from tests.sinks.postgres.server import PASSWORD

NAME: Final = "bank"
ACCOUNTS: Final = 6
"""In the database, and as many in the topic."""
INITIAL: Final = 1_000
_SCHEMA: Final = """
CREATE TABLE accounts (id integer PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE entries (transfer text NOT NULL, number bigint NOT NULL, account integer NOT NULL, delta bigint NOT NULL);
CREATE TABLE writers (name text PRIMARY KEY, epoch bigint NOT NULL, number bigint NOT NULL, prepared text NOT NULL);
"""
_SNAPSHOT: Final = """
SELECT (SELECT number FROM writers), sum(balance), count(*) FILTER (WHERE balance <> %s + coalesce(delta, 0))
FROM accounts LEFT JOIN (SELECT account, sum(delta) AS delta FROM entries GROUP BY account) AS e ON account = id
"""


class Transfer(NamedTuple):
    """``delta`` goes to an account in the topic, and comes from one in the database; it may be negative."""

    transfer: str
    topic_account: int
    database_account: int
    delta: int


class Snapshot(NamedTuple):
    """One moment of the database: the last committed transaction, the sum of the balances, and how many balances are
    not those of their entries."""

    number: int
    total: int
    wrong_balances: int


class Replaced(Exception):
    """Another writer has acquired the database."""


class Database:
    """One connection. Every method raises psycopg.Error."""

    def __init__(self, url: str) -> None:
        self._connection: psycopg.Connection[Any] = psycopg.connect(
            url, password=PASSWORD, autocommit=True, connect_timeout=10
        )

    def close(self) -> None:
        self._connection.close()

    def create(self) -> None:
        self._connection.execute(_SCHEMA)
        self._connection.execute("INSERT INTO writers VALUES (%s, 0, 0, '')", (NAME,))
        for account in range(ACCOUNTS):
            self._connection.execute("INSERT INTO accounts VALUES (%s, %s)", (account, INITIAL))

    # --- for the writer -----------------------------------------------------------------------------------------

    def acquire(self) -> tuple[int, int, str]:
        """Fence every earlier writer; its COMMIT under way is waited for. Epoch, number, prepared transaction."""
        row = self._connection.execute(
            "UPDATE writers SET epoch = epoch + 1 WHERE name = %s RETURNING epoch, number, prepared", (NAME,)
        ).fetchone()
        assert row is not None
        epoch, number, prepared = row
        return epoch, number, prepared

    def commit(self, epoch: int, number: int, transfers: Sequence[Transfer], prepared: str) -> None:
        """The database's half of a transaction. Raises Replaced."""
        with self._connection.transaction():
            changed = self._connection.execute(
                "UPDATE writers SET number = %s, prepared = %s WHERE name = %s AND epoch = %s",
                (number, prepared, NAME, epoch),
            )
            if changed.rowcount != 1:
                raise Replaced
            for each in transfers:
                account, delta = each.database_account, -each.delta
                self._connection.execute(
                    "INSERT INTO entries VALUES (%s, %s, %s, %s)", (each.transfer, number, account, delta)
                )
                self._connection.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", (delta, account))

    # --- for readers --------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """One statement, hence one snapshot of the server's."""
        row = self._connection.execute(_SNAPSHOT, (INITIAL,)).fetchone()
        assert row is not None
        number, total, wrong = row
        return Snapshot(number, int(total), wrong)

    def number(self) -> int:
        row = self._connection.execute("SELECT number FROM writers").fetchone()
        assert row is not None
        return int(row[0])
