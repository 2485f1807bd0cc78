"""A database in one file as a sink: tasks stage Parquet files, the driver loads them and the record in one
transaction. What SQLite and DuckDB share; each of them is a ``Database``.

The table ``einmal_commits`` has one row for each pipeline, and one for the database itself, under the empty name: its
identity, and the last epoch of all names. So an epoch never comes back, also where the row of a pipeline was deleted in
the meantime.

    acquire   next epoch of all names -> epoch of this name; then older staging is removed
    record    BEGIN; epoch, last record and the table's columns compared; rows loaded and counted, those that the table
              rejects recorded, where that is tolerated; record updated. It stays open
    commit    COMMIT

Between ``record`` and ``commit`` nobody can acquire the name: in SQLite the writer's lock is held, in DuckDB the second
change of the row is a conflict, because each adds one to ``changes``. Before ``record``, the epoch that it compares is
the one that was acquired last.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from einmal.commit_protocol.claims import Output
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.options.sink import error_options
from einmal.options.values import OptionError, Options
from einmal.pipeline import events
from einmal.pipeline.dead_letters import RejectedRow, ToleranceExceeded
from einmal.pipeline.errors import PipelineRefused
from einmal.schemas.settings import ERRORS, ErrorSettings
from einmal.sinks import stored_record
from einmal.sinks.batch_rows import BatchRows
from einmal.sinks.commit_point import (
    Committed,
    Identity,
    OutcomeUnknown,
    RowCommitPoint,
    SinkError,
    SinkFailed,
    SinkFenced,
    following,
)
from einmal.sinks.rejections import (
    RECORD,
    REFUSAL,
    REJECTED,
    Rejections,
    as_columns,
    record_problems,
)
from einmal.sinks.row_schema import RowSchema, RowType
from einmal.sinks.sink import Opening, RowSink
from einmal.sinks.staged_files import StagedFile, StagedFiles
from einmal.types import ProducerEpoch, ProducerId

COMMITS: Final = "einmal_commits"
INTERNAL: Final = frozenset({COMMITS, REJECTED})
_ITSELF: Final = ""
"""The row of the database: ``record`` is its identity, ``epoch`` the last one of all names."""
_CREATE: Final = (
    f"CREATE TABLE IF NOT EXISTS {COMMITS} "
    "(pipeline VARCHAR PRIMARY KEY, epoch BIGINT NOT NULL, record VARCHAR, timestamp_ms BIGINT NOT NULL, "
    "changes BIGINT NOT NULL DEFAULT 0)"
)
_CREATE_REJECTED: Final = (
    f"CREATE TABLE IF NOT EXISTS {REJECTED} (pipeline VARCHAR NOT NULL, batch_id BIGINT NOT NULL, "
    'number INTEGER NOT NULL, "topic" VARCHAR NOT NULL, "partition" INTEGER NOT NULL, "offset" BIGINT NOT NULL, '
    "exception VARCHAR NOT NULL, message VARCHAR NOT NULL)"
)
"""An outbox: see ``rejections.REJECTED``. The rows of the batch before are deleted in the transaction of the next one,
which begins only when their dead letters are committed (``protocol/exactly_once``)."""
_CREATE_ROW: Final = f"INSERT INTO {COMMITS} VALUES (?, ?, ?, ?, 0) ON CONFLICT DO NOTHING"


def quoted(name: str) -> str:
    """A name as SQL."""
    return '"' + name.replace('"', '""') + '"'


class Column(NamedTuple):
    """``is_required``: it is NOT NULL, and has no default."""

    name: str
    type: str
    is_required: bool


class Database(ABC):
    """One kind of database, and the file of one."""

    own_columns: ClassVar[frozenset[str]] = frozenset({REFUSAL})
    """Names, in lower case, of the columns by which rejected rows are found."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    @abstractmethod
    def errors(self) -> type[Exception]:
        """Type of the errors that its driver raises."""

    @abstractmethod
    def connect(self, *, creating: bool = False) -> Any:
        """A connection without a transaction; ``execute`` as in DB-API, parameters are ``?``."""

    @abstractmethod
    def begin(self, connection: Any) -> None:
        """Begin a transaction that will write."""

    @abstractmethod
    def is_open(self, connection: Any, error: Exception) -> bool:
        """Whether the transaction can still be committed after this error of COMMIT: somebody reads."""

    def is_violated(self, error: Exception) -> bool:
        """Whether COMMIT has failed for a constraint that the rows violate, and will again."""
        return False

    @abstractmethod
    def refuses_rows(self, error: Exception) -> bool:
        """Whether the rows are the cause, so that they fail again."""

    @abstractmethod
    def columns(self, connection: Any, table: str) -> Sequence[Column]:
        """Return the columns of a table; none if it does not exist."""

    @abstractmethod
    def takes_no_rows(self, connection: Any, table: str) -> str:
        """Why no row can be inserted into what has this name; empty: it is a table, or there is none."""

    @abstractmethod
    def column_type(self, kind: RowType) -> str | None:
        """The type of a column for a type of Spark's; None: there is none."""

    @abstractmethod
    def is_kept(self, declared: str, wanted: str) -> bool:
        """Whether a column that was declared so keeps every value of a column type."""

    @abstractmethod
    def load(self, connection: Any, table: str, files: Sequence[StagedFile]) -> int:
        """Insert the rows of the files; how many. Raises ``errors``, SinkFailed."""

    @abstractmethod
    def load_others(self, connection: Any, table: str, files: Sequence[StagedFile], rejections: Rejections) -> int:
        """As ``load``, but for the rows that the table rejects, which it adds to ``rejections``. The files have the
        column ``RECORD``. Raises ``errors``, SinkFailed, ToleranceExceeded."""


class EmbeddedCommitPoint(RowCommitPoint):
    def __init__(self, database: Database, table: str, staging: Path, opening: Opening, errors: ErrorSettings) -> None:
        self._database = database
        self._table = table
        self._tolerated = errors
        self._name = opening.name
        self._notify = opening.notify
        self._files = StagedFiles(staging, opening.name)
        self._schema: RowSchema | None = None
        """Columns of the rows that were staged last; None: this run has staged none."""
        self._epoch: ProducerId | None = None
        self._last: stored_record.Known | None = None
        """The record that this run has read or committed, encoded; None: it has done neither."""
        self._candidate: stored_record.Known = (None,)
        """The record as the open transaction makes it."""
        self._transaction: Any = None
        """The connection with the open transaction."""

    def look(self) -> CommitRecord | None:
        if not self._database.path.exists():
            return None
        with self._connection() as connection:
            row = _row(connection, self._name) if _has_commits(connection) else None
        return None if row is None else stored_record.decoded(self._name, row[1])

    def acquire(self, held: Identity | None) -> Identity:
        with self._connection(creating=True) as connection:
            self._database.begin(connection)
            connection.execute(_CREATE)
            if self._tolerated.tolerates:
                connection.execute(_CREATE_REJECTED)
            if held is not None:
                self._compare(connection, held)
            epoch = _next_epoch(connection)
            self._know_files(connection)
            connection.execute(_CREATE_ROW, [self._name, 0, None, _now_ms()])
            connection.execute(
                f"UPDATE {COMMITS} SET changes = changes + 1, epoch = ? WHERE pipeline = ?", [epoch, self._name]
            )
            self._commit(connection)
        self._epoch, self._last = ProducerId(epoch), None
        try:
            self._files.discard_before(epoch)
        except OSError as error:
            raise SinkFailed(f"what an earlier run has staged cannot be removed: {error}") from error
        return Identity(self._epoch, ProducerEpoch(0))

    def read(self) -> CommitRecord | None:
        assert self._epoch is not None, "read follows acquire"
        with self._connection() as connection:
            _, text = self._compare(connection, Identity(self._epoch, ProducerEpoch(0)))
        self._last = (text,)
        return stored_record.decoded(self._name, text)

    def check(self, identity: Identity) -> None:
        with self._connection() as connection:
            self._compare_record(self._compare(connection, identity)[1])

    def stage(self, identity: Identity, batch_id: int, rows: BatchRows) -> tuple[Output, ...]:
        with self._connection() as connection:
            # So that a run that has been fenced stages nothing, which its successor would not expect any more.
            self._compare(connection, identity)
            self._check(connection, rows.schema)
        stored = rows if self._tolerated.tolerates else rows.without(RECORD)
        outputs = self._files.write(stored, self._table, identity, batch_id)
        for output in outputs:
            self._notify(events.PartitionWritten(batch_id, output.topic, output.partition, output.count))
        return outputs

    def record(self, identity: Identity, record: CommitRecord | None) -> None:
        assert self._transaction is None, "one transaction at a time"
        with self._errors():
            self._transaction = self._database.connect()
            self._database.begin(self._transaction)
            _, text = self._compare(self._transaction, identity)
            self._compare_record(text)
            self._load(self._files.compared(identity), None if record is None else record.batch_id)
            self._candidate = (None if record is None else record.encode().decode(),)
            self._transaction.execute(
                f"UPDATE {COMMITS} SET changes = changes + 1, record = ?, timestamp_ms = ? WHERE pipeline = ?",
                [*self._candidate, _now_ms(), self._name],
            )

    def _load(self, files: Sequence[StagedFile], batch_id: int | None) -> None:
        """Into the open transaction."""
        staged = sum(file.count for file in files)
        if files and self._schema is not None:
            # The table may have been altered since it was checked.
            _refuse(table_problems(self._database, self._transaction, self._table, self._schema))
        if batch_id is None or not self._tolerated.tolerates:
            loaded = self._database.load(self._transaction, self._table, files) if files else 0
        else:
            rejections = Rejections(self._name, self._tolerated, batch_id, staged)
            loaded = self._database.load_others(self._transaction, self._table, files, rejections) if files else 0
            loaded += rejections.count
            self._transaction.execute(f"DELETE FROM {REJECTED} WHERE pipeline = ?", [self._name])
            for row in as_columns(rejections.rejected):
                values = [self._name, batch_id, *row]
                self._transaction.execute(f"INSERT INTO {REJECTED} VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
        if loaded != staged:
            raise SinkFailed(f"{staged} rows were staged for {self._table}, and {loaded} were inserted")

    def rejected(self, batch_id: int) -> Sequence[RejectedRow]:
        query = f'SELECT "topic", "partition", "offset", exception, message FROM {REJECTED}'
        with self._connection() as connection:
            rows = connection.execute(
                f"{query} WHERE pipeline = ? AND batch_id = ? ORDER BY number", [self._name, batch_id]
            ).fetchall()
        return [RejectedRow(*row) for row in rows]

    def commit(self, identity: Identity) -> Identity:
        connection = self._transaction
        if connection is None:
            raise SinkFailed("no transaction is open")
        self._commit(connection)
        self._last = self._candidate
        self._rollback()
        # The outcome is known. What cannot be removed now is removed by the next run.
        with contextlib.suppress(OSError):
            self._files.discard(identity)
        return following(identity)

    def abort(self, identity: Identity) -> Identity:
        was_open = self._transaction is not None
        self._rollback()
        if self._epoch is None:
            with self._connection() as connection:
                self._know_files(connection)
        try:
            was_staged = self._files.discard(identity)
        except OSError as error:
            raise SinkFailed(f"what was staged cannot be removed: {error}") from error
        with self._connection() as connection:
            self._compare(connection, identity)
        if self._epoch is None and not (was_open or was_staged):
            raise SinkFailed(f"nothing is open under epoch {identity.producer_id}")
        return following(identity)

    def forget(self) -> None:
        identity = self.acquire(None)
        with self._connection() as connection:
            self._database.begin(connection)
            self._compare(connection, identity)
            connection.execute(f"DELETE FROM {COMMITS} WHERE pipeline = ?", [self._name])
            self._commit(connection)

    def abandon(self) -> None:
        self._rollback()

    def close(self) -> None:
        self._rollback()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _know_files(self, connection: Any) -> None:
        """By path and identity: a file can be copied, and two machines can have the same path."""
        row = _row(connection, _ITSELF) if _has_commits(connection) else None
        self._files.belong_to(f"{self._database.path.resolve()}\0{'' if row is None else row[1]}")

    def _check(self, connection: Any, schema: RowSchema) -> None:
        """Only the first batch of a run creates the table: one that is gone later had rows."""
        problems = record_problems(self._tolerated, schema, self._database.own_columns)
        columns = schema.without(RECORD)
        if self._schema is None:
            problems += prepare_table(self._database, connection, self._table, columns, self._name)
        else:
            problems += table_problems(self._database, connection, self._table, columns)
        _refuse(problems)
        self._schema = columns

    @contextlib.contextmanager
    def _connection(self, *, creating: bool = False) -> Iterator[Any]:
        with self._errors(), contextlib.closing(self._database.connect(creating=creating)) as connection:
            yield connection

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Errors of the database as those of a sink; an open transaction is rolled back."""
        try:
            yield
        except self._database.errors as error:
            self._rollback()
            raise SinkFailed(
                f"{self._database.path}: {error}", will_again=self._database.refuses_rows(error)
            ) from error
        except (SinkError, PipelineRefused, ToleranceExceeded):
            self._rollback()
            raise

    def _compare(self, connection: Any, identity: Identity) -> tuple[Any, ...]:
        """The row of the pipeline. Raises SinkFenced, PipelineRefused where its epoch is another one."""
        row = _row(connection, self._name) if _has_commits(connection) else None
        if row is not None:
            stored_record.compare_epoch(self._name, identity.producer_id, row[0], str(self._database.path))
        if row is None or row[0] != identity.producer_id:
            current = "the name was deleted" if row is None else f"epoch {row[0]} was acquired"
            raise SinkFenced(f"{current} since this run acquired epoch {identity.producer_id} of {self._name!r}")
        return row

    def _compare_record(self, text: str | None) -> None:
        """Raises PipelineRefused."""
        location, cause = str(self._database.path), "the file was restored or replaced"
        stored_record.compare(self._name, self._last, text, location, cause)

    def _commit(self, connection: Any) -> None:
        try:
            connection.execute("COMMIT")
        except self._database.errors as error:
            if self._database.is_open(connection, error):
                raise SinkFailed(
                    f"{self._database.path} cannot be committed: {error}", will_again=self._database.is_violated(error)
                ) from error
            if connection is self._transaction:
                self._rollback()
            raise OutcomeUnknown(f"COMMIT in {self._database.path}: {error}") from error

    def _rollback(self) -> None:
        """Closing a connection rolls back."""
        connection, self._transaction = self._transaction, None
        if connection is not None:
            with contextlib.suppress(self._database.errors):
                connection.close()


class EmbeddedSink(RowSink):
    """``path``: of the database's file; ``table``: created, with the columns of the rows, if it does not exist;
    ``staging``: a directory that the driver and all executors share, by default beside the database."""

    OPTIONS = ("path", "table", "staging", "busyTimeout", *ERRORS)
    KIND: ClassVar[str]
    EXAMPLE: ClassVar[str]

    def __init__(self, options: Options) -> None:
        path = options.required("path", self.EXAMPLE)
        if path.startswith(":") or "://" in path or path.startswith("file:"):
            raise OptionError(f'option "path" is the path of a {self.KIND} file, not {path!r}')
        self._path = Path(path).absolute()
        self._table = _table_name(options.required("table", "words"))
        if self._table.lower() in INTERNAL or self._table.lower().startswith("sqlite_"):
            raise OptionError(f'option "table": {self._table} is an internal table; write to a table of your own')
        self._staging = Path(options.text("staging") or f"{self._path}.staging").absolute()
        self._database = self.database(self._path, options)
        self._errors = error_options(options)

    @abstractmethod
    def database(self, path: Path, options: Options) -> Database:
        """How the file is opened. Raises OptionError."""

    @property
    def table(self) -> str:
        return f"{self._table} in {self._path}"

    def commit_point(self, opening: Opening) -> RowCommitPoint:
        return EmbeddedCommitPoint(self._database, self._table, self._staging, opening, self._errors)

    @property
    def errors(self) -> ErrorSettings:
        return self._errors

    def identity(self) -> str | None:
        if not self._path.exists():
            return None
        with self._connection() as connection:
            row = _row(connection, _ITSELF) if _has_commits(connection) else None
        return None if row is None else str(row[1])

    def committed(self) -> Mapping[str, Committed]:
        if not self._path.exists():
            return {}
        with self._connection() as connection:
            rows = (
                connection.execute(f"SELECT pipeline, epoch, record, timestamp_ms FROM {COMMITS}").fetchall()
                if _has_commits(connection)
                else []
            )
        return {
            name: stored_record.committed(name, record, timestamp)
            for name, _, record, timestamp in sorted(rows)
            if name != _ITSELF and record is not None
        }

    def problems(self, name: str, schema: RowSchema | None) -> list[tuple[str, str]]:
        with self._connection(creating=True) as connection:
            # Where everything exists no lock is needed: another pipeline may be writing.
            if not _has_commits(connection) or _row(connection, _ITSELF) is None:
                self._database.begin(connection)
                connection.execute(_CREATE)
                _create_itself(connection)
                connection.execute("COMMIT")
            if schema is None:
                return []
            problems = record_problems(self._errors, schema, self._database.own_columns)
            return problems + prepare_table(self._database, connection, self._table, schema.without(RECORD), name)

    @contextlib.contextmanager
    def _connection(self, *, creating: bool = False) -> Iterator[Any]:
        try:
            with contextlib.closing(self._database.connect(creating=creating)) as connection:
                yield connection
        except self._database.errors as error:
            raise SinkError(f"{self._path}: {error}") from error


def prepare_table(
    database: Database, connection: Any, table: str, schema: RowSchema, pipeline: str
) -> list[tuple[str, str]]:
    """Create the table if it does not exist; what is wrong with it for rows of this schema. Raises ``errors``."""
    is_there = database.takes_no_rows(connection, table) or database.columns(connection, table)
    if is_there or _columns_without_type(database, schema):
        return table_problems(database, connection, table, schema)
    row = _row(connection, pipeline)
    if problems := stored_record.missing_table(pipeline, None if row is None else row[1], table):
        return problems
    columns = ", ".join(f"{quoted(field.name)} {database.column_type(field.type)}" for field in schema)
    connection.execute(f"CREATE TABLE {quoted(table)} ({columns})")
    return []


def table_problems(database: Database, connection: Any, table: str, schema: RowSchema) -> list[tuple[str, str]]:
    """Return the problems of an existing table for rows of this schema. Raises ``errors``."""
    if why := database.takes_no_rows(connection, table):
        return [(f"{table} {why}", "write to a table")]
    existing = database.columns(connection, table)
    return _columns_without_type(database, schema) or _columns_that_differ(database, table, schema, existing)


def _refuse(problems: Sequence[tuple[str, str]]) -> None:
    """Raises SinkFailed where there are problems."""
    if problems:
        raise SinkFailed("; ".join(f"{problem} ({hint})" for problem, hint in problems), will_again=True)


def _columns_without_type(database: Database, schema: RowSchema) -> list[tuple[str, str]]:
    lower = [field.name.lower() for field in schema]
    twice = sorted({name for name in lower if lower.count(name) > 1})
    problems = [(f"there are two columns {name!r}: the database ignores case", "rename one") for name in twice]
    problems += [
        (f"no column can be named {field.name!r}", "rename it")
        for field in schema
        if not field.name or "\0" in field.name
    ]
    return problems + [
        (
            f"column {field.name!r} has type {field.type}, which no column of the database can have",
            f"select parts of it, or to_json({field.name})",
        )
        for field in schema
        if database.column_type(field.type) is None
    ]


def _columns_that_differ(
    database: Database, table: str, schema: RowSchema, existing: Sequence[Column]
) -> list[tuple[str, str]]:
    if not existing:
        return [(f"there is no table {table}", "if it was dropped, reset the pipeline or restore the table")]
    columns = {column.name.lower(): column for column in existing}
    problems = []
    for field in schema:
        wanted = database.column_type(field.type) or ""
        column = columns.pop(field.name.lower(), None)
        if column is None:
            problems.append((f"table {table} has no column {field.name!r}", f"add one of type {wanted}"))
        elif not database.is_kept(column.type, wanted):
            differs = f"column {field.name!r} of table {table} is {column.type}"
            kind = field.type
            hint = f"cast it in the query, or declare the column as {wanted}"
            problems.append((f"{differs}, and {kind} in the rows: values could change", hint))
    required = [column.name for column in columns.values() if column.is_required]
    return problems + [
        (f"column {name!r} of table {table} is NOT NULL, and the rows have none", "select it in the query")
        for name in required
    ]


def _table_name(given: str) -> str:
    """Raises OptionError."""
    if len(given) > 2 and given[0] == given[-1] == '"':
        return given[1:-1].replace('""', '"')
    if "." in given:
        raise OptionError(
            f'option "table": {given} names a schema, and tables of the schema main are written; '
            f"{quoted(given)} in quotes is a table whose name has a dot"
        )
    return given


def _row(connection: Any, name: str) -> tuple[Any, ...] | None:
    """Epoch and record."""
    row = connection.execute(f"SELECT epoch, record FROM {COMMITS} WHERE pipeline = ?", [name]).fetchone()
    return None if row is None else tuple(row)


def _has_commits(connection: Any) -> bool:
    """Both databases have the view that only SQLite names so."""
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [COMMITS]).fetchone() is not None


def _create_itself(connection: Any) -> None:
    connection.execute(_CREATE_ROW, [_ITSELF, 0, str(uuid.uuid4()), _now_ms()])


def _next_epoch(connection: Any) -> int:
    _create_itself(connection)
    row = connection.execute(
        f"UPDATE {COMMITS} SET epoch = epoch + 1 WHERE pipeline = ? RETURNING epoch", [_ITSELF]
    ).fetchone()
    return int(row[0])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
