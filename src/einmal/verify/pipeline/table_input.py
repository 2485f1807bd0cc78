"""Input of a change data capture under test: a table of PostgreSQL, changed in transactions, some rolled back."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from einmal.checker.history import OpOutcome, Send
from einmal.extras import install_command
from einmal.security.secret import HIDDEN
from einmal.types import TopicPartition
from einmal.verify.pipeline.mapping import InputRecord, InputRecords, MappingWrong
from einmal.workloads.recorder import OngoingOp, Recorder

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_WRITE_S: Final = (0.0, 0.1)
_WRITER: Final = 1
_CHANGES: Final = (1, 5)
_ROLLED_BACK: Final = 0.2
_INSERTS: Final = 0.5
_DELETES: Final = 0.15
_ROWS_MIN: Final = 10
_CONNECT_S: Final = 10
_AGAIN_S: Final = 0.5
_BOUNDS: Final = "SET lock_timeout = '10s'; SET statement_timeout = '30s'"
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?", re.ASCII)
_SERVER_S: Final = 60.0
"""How long a server that was there may be away."""


class _Change(NamedTuple):
    """``op``: as in Debezium's records; ``amount``: unique, and that of the deleted row."""

    op: str
    id: int
    amount: int

    @property
    def value(self) -> str:
        return json.dumps(self._asdict(), separators=(",", ":"))


class TableInput:
    """``url``: of the database. ``table``: with a schema, or in the first of the search path; the run makes it."""

    def __init__(
        self, url: str, table: str, chance: random.Random, recorder: Recorder, has_output: Callable[[], bool]
    ) -> None:
        """``has_output``: whether the pipeline has written anything. Raises MappingWrong."""
        try:
            import psycopg
        except ModuleNotFoundError as error:
            raise MappingWrong(f"--input-database needs psycopg: {install_command('postgres')}") from error
        if not _NAME.fullmatch(table):
            raise MappingWrong(
                f"--input: {table!r} is no name that SQL has without quotes, such as orders or shop.orders"
            )
        self._psycopg = psycopg
        self._secrets = self._secrets_of(url)
        self._url = url
        self._table = table
        self._name = psycopg.sql.Identifier(*table.split("."))
        self._chance = chance
        self._recorder = recorder
        self._has_output = has_output
        self._rows: dict[int, int] = {}
        """Amounts by id, as they are committed."""
        self._numbers = 0
        self._committed: list[_Change] = []
        self._rolled_back: list[_Change] = []
        self._first: list[_Change] = []
        self._is_made: bool | None = False
        """None: perhaps."""
        self._is_stopped = False
        self._served = 0.0
        """When the server has last done what it was asked for."""

    def _secrets_of(self, url: str) -> list[str]:
        """Raises MappingWrong, whose words have none of them."""
        try:
            parts = self._psycopg.conninfo.conninfo_to_dict(url)
        except self._psycopg.ProgrammingError:
            parts = {"host": "@"}
        if "@" in str(parts.get("host", "")):
            raise MappingWrong(
                "--input-database is no URL such as postgresql://user@host/database; other characters than letters "
                "and digits are written as %40 (here @) in a password"
            )
        return [url, *(str(parts[name]) for name in ("password", "sslpassword") if parts.get(name))]

    def without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def locate(self, record: InputRecord) -> str:
        return f"change {record.offset} of {self._table}"

    async def make(self) -> None:
        """Create the table. Raises TableFailed."""
        statement = self._sql("CREATE TABLE {} (id bigint PRIMARY KEY, amount bigint NOT NULL)")
        try:
            async with asyncio.timeout(_SERVER_S), await self._connect() as connection:
                self._is_made = None
                await connection.execute(statement)
        except self._psycopg.errors.DuplicateTable as error:
            self._is_made = False
            raise TableFailed(
                f"table {self._table} is in the database: name one that does not exist; the run makes it, and drops it "
                "afterwards"
            ) from error
        except (self._psycopg.Error, TimeoutError) as error:
            raise self._failed(error) from error
        self._is_made = True

    async def remove(self) -> list[str]:
        if self._is_made is None:
            return [f"table {self._table}: it was perhaps made; drop it"]
        if not self._is_made:
            return []
        try:
            async with asyncio.timeout(_SERVER_S), await self._connect() as connection:
                await connection.execute(self._sql("DROP TABLE {}"))
        except (self._psycopg.Error, TimeoutError) as error:
            return [f"table {self._table}: {self._sentence(error)}"]
        return []

    def stop(self) -> None:
        self._is_stopped = True

    async def write(self) -> None:
        """Change the table until stopped, or until no server has answered for a minute. Raises TableFailed."""
        self._serves()
        while not self._is_stopped:
            try:
                async with await self._connect() as connection:
                    await self._await_pipeline(connection)
                    while not (self._is_stopped or connection.closed):
                        await self._transaction(connection)
                        await asyncio.sleep(self._chance.uniform(*_WRITE_S))
            except (self._psycopg.OperationalError, TimeoutError) as error:
                if asyncio.get_running_loop().time() > self._served + _SERVER_S:
                    raise self._failed(error) from error
                await asyncio.sleep(_AGAIN_S)
            except self._psycopg.Error as error:
                raise self._failed(error) from error

    async def records(self) -> InputRecords:
        """The changes of all transactions. The first rows may be read as rows of a snapshot."""
        first = [tuple(_records([change, change._replace(op="r")])) for change in self._first]
        return InputRecords(_records(self._committed), _records(self._rolled_back), first, is_ordered=True)

    async def _await_pipeline(self, connection: AsyncConnection[Any]) -> None:
        """Insert a row now and then until the pipeline has written one: it sees only changes that come after it."""
        while not self._is_stopped and not self._has_output():
            self._numbers += 1
            self._first.append(_Change("c", self._numbers, self._numbers))
            async with asyncio.timeout(_SERVER_S):
                await connection.execute(*self._statement(self._first[-1]))
            self._serves()
            await asyncio.sleep(_AGAIN_S)

    # --- one transaction ----------------------------------------------------------------------------------------------

    async def _transaction(self, connection: AsyncConnection[Any]) -> None:
        rows = dict(self._rows)
        changes = [self._draw(rows) for _ in range(self._chance.randint(*_CHANGES))]
        is_rolled_back = self._chance.random() < _ROLLED_BACK
        entries = [self._begun(change) for change in changes]
        number = ""
        try:
            async with asyncio.timeout(_SERVER_S), connection.transaction(force_rollback=is_rolled_back):
                cursor = await connection.execute("SELECT pg_current_xact_id()::text")
                number = (await cursor.fetchone() or ("",))[0]
                for change in changes:
                    await connection.execute(*self._statement(change))
        except (self._psycopg.OperationalError, TimeoutError):
            # The answer to COMMIT may be lost; the server knows what has become of the transaction.
            is_committed = bool(number) and await self._has_committed(number)
            await connection.close()
        else:
            is_committed = not is_rolled_back
            self._serves()
        (self._committed if is_committed else self._rolled_back).extend(changes)
        if is_committed:
            self._rows = rows
        offsets = range(len(self._committed) - len(changes), len(self._committed))
        for entry, offset in zip(entries, offsets, strict=True):
            if is_committed:
                entry.ended(OpOutcome.OK, [offset])
            else:
                entry.ended(OpOutcome.FAIL, cause="rolled back")

    async def _has_committed(self, number: str) -> bool:
        """Raises TableFailed where the server does not know it in time."""
        until = asyncio.get_running_loop().time() + _SERVER_S
        why = f"transaction {number} is in progress, although its session has ended"
        while asyncio.get_running_loop().time() < until:
            try:
                async with asyncio.timeout(_SERVER_S), await self._connect() as connection:
                    cursor = await connection.execute("SELECT pg_xact_status(%s::xid8)", (number,))
                    (status,) = await cursor.fetchone() or (None,)
                    if status != "in progress":
                        self._serves()
                        return bool(status == "committed")
            except (self._psycopg.OperationalError, TimeoutError) as error:
                why = self._sentence(error)
            await asyncio.sleep(_AGAIN_S)
        raise TableFailed(f"--input-database: {why}")

    def _serves(self) -> None:
        self._served = asyncio.get_running_loop().time()

    def _draw(self, rows: dict[int, int]) -> _Change:
        """A change that the rows allow, and that is done to them."""
        self._numbers += 1
        draw = self._chance.random()
        if len(rows) < _ROWS_MIN or draw < _INSERTS:
            change = _Change("c", self._numbers, self._numbers)
        elif draw < _INSERTS + _DELETES:
            key = self._chance.choice(list(rows))
            change = _Change("d", key, rows[key])
        else:
            change = _Change("u", self._chance.choice(list(rows)), self._numbers)
        if change.op == "d":
            del rows[change.id]
        else:
            rows[change.id] = change.amount
        return change

    def _statement(self, change: _Change) -> tuple[Any, tuple[int, ...]]:
        match change.op:
            case "c":
                return self._sql("INSERT INTO {} (id, amount) VALUES (%s, %s)"), (change.id, change.amount)
            case "u":
                return self._sql("UPDATE {} SET amount = %s WHERE id = %s"), (change.amount, change.id)
            case _:
                return self._sql("DELETE FROM {} WHERE id = %s"), (change.id,)

    def _sql(self, statement: str) -> Any:
        return self._psycopg.sql.SQL(statement).format(self._name)

    def _begun(self, change: _Change) -> OngoingOp:
        entry = self._recorder.begin(_WRITER, transactional=True)
        entry.sends(Send(TopicPartition(self._table, 0), change.value))
        return entry

    async def _connect(self) -> AsyncConnection[Any]:
        connection = await self._psycopg.AsyncConnection.connect(
            self._url, autocommit=True, connect_timeout=_CONNECT_S, application_name="einmal-verify"
        )
        await connection.execute(_BOUNDS)
        return connection

    def _failed(self, error: Exception) -> TableFailed:
        return TableFailed(f"--input-database: {self._sentence(error)}")

    def _sentence(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer of the server within {_SERVER_S:.0f} s"
        return self.without_secrets(" ".join(str(error).split()))


class TableFailed(Exception):
    """The table cannot be used. ``str()`` is a sentence for the user."""


def _records(changes: list[_Change]) -> list[InputRecord]:
    return [InputRecord(0, number, str(change.id), change.value) for number, change in enumerate(changes)]
