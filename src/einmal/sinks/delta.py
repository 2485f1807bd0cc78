"""A Delta Lake table as a sink, by delta-rs: no jar, and no JVM for the commit.

Delta's own pair of an application's id and version (the action ``txn``) is the fence and the pointer to the record:

    appId     einmal/NAME
    version   epoch * 2**32 + the number of the transaction in this epoch; larger with each commit
    record    _einmal/records/NAME/VERSION.json in the table's directory, durable before the commit that names it;
              none of a name that was forgotten, whose version ends with the largest number

Two drivers that acquire a name at once make the same version. So the file of an epoch is created and never replaced:
whoever finds it takes the next epoch, and nobody writes an older record under a version that another one commits.

A table with ``delta.setTransactionRetentionDuration`` forgets a name that has committed nothing for so long. The
record's file is still there then, and the name is not taken for a new one.

The record is not in the commit's metadata (``commitInfo``), which Delta deletes with its old log files, and not in the
table's properties, whose change is a conflict for every other writer. The action ``txn`` is kept in checkpoints.

Each commit is made on the snapshot whose version was compared, in one try (``max_commit_retries=0``): a later commit of
anybody is a conflict, and is looked at. delta-rs alone would accept a version that was committed before (delta-rs
#2580, #3821), so versions are compared here.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from einmal.options.values import Options
from einmal.pipeline.reasons import HopVerdict, Reason
from einmal.sinks.commit_point import Identity
from einmal.sinks.delta_statistics import COLUMNS_DEFAULT, COLUMNS_SETTING, statistics
from einmal.sinks.lake import (
    NULLABILITY,
    STAGING,
    LakeSink,
    LakeState,
    LakeTable,
    SnapshotSuperseded,
    library_errors,
    mounted_directory,
    state_as_json,
    without_nullability,
)
from einmal.sinks.row_schema import RowSchema
from einmal.sinks.staged_files import StagedFile, directory_of, flush_directory
from einmal.sinks.stored_record import MISSING
from einmal.types import ProducerEpoch, ProducerId

_TRANSACTIONS: Final = 2**32
"""Number of transactions of one epoch."""
_FORGOTTEN: Final = _TRANSACTIONS - 1
"""In place of the number: the name has no record, and no file of one."""
_PREFIX: Final = "einmal/"
_NAME_FILE: Final = "name"
_WRITER_VERSION_MAX: Final = 2
_FEATURES: Final = frozenset({"appendOnly", "invariants", "timestampNtz", "deletionVectors", "domainMetadata"})
"""Table features that an append need not do anything for."""
_VARCHAR: Final = "__CHAR_VARCHAR_TYPE_STRING"
_NOT_CHECKED: Final = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
"""Metadata of columns, and of fields of structs, whose rules are a writer's to keep."""


class DeltaLakeTable(LakeTable):
    ignores_case = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records = path / STAGING / "records"

    @property
    def label(self) -> str:
        return str(self._path)

    @property
    def root(self) -> Path:
        return self._path

    def load(self) -> Any:
        from deltalake import DeltaTable

        path = str(self._path)
        return DeltaTable(path) if DeltaTable.is_deltatable(path) else None

    def identity(self, snapshot: Any) -> str:
        return str(snapshot.metadata().id)

    def next_epoch(self, snapshot: Any, name: str) -> int:
        used = [int(path.stem) // _TRANSACTIONS for path in self._record_files(name)]
        return max(super().next_epoch(snapshot, name), max(used, default=0) + 1)

    def names(self, snapshot: Any) -> Sequence[str]:
        if not self._records.exists():
            return []
        files = [directory / _NAME_FILE for directory in sorted(self._records.iterdir())]
        # A driver may be making a directory, or may have died meanwhile.
        return [file.read_text(encoding="utf-8", errors="replace") for file in files if file.exists()]

    def state(self, snapshot: Any, name: str) -> LakeState:
        version = snapshot.transaction_version(f"{_PREFIX}{name}")
        if version is None and not self._record_files(name):
            return LakeState()
        if version is not None and version % _TRANSACTIONS == _FORGOTTEN:
            return _uncertain(version // _TRANSACTIONS, None)
        text = "" if version is None else self._record_text(name, version)
        if not text:
            later = self.load()
            if later is not None and later.version() > snapshot.version():
                # The next commit has removed it. A commit on ``snapshot`` is refused all the same.
                return self.state(later, name)
        if version is None:
            return self._state_without_transaction(name)
        return _state_of(version, text or f"{MISSING}: {self._record_path(name, version)} is empty, or is not there")

    def _state_without_transaction(self, name: str) -> LakeState:
        """By the record's file alone. Drivers that have acquired the name, and committed nothing, leave one, too."""
        last = max((int(path.stem) for path in self._record_files(name)), default=0)
        state = _state_of(last, self._record_text(name, last))
        # The first file of all may be half-written.
        if last <= _TRANSACTIONS or state.committed == LakeState().committed:
            return LakeState(last // _TRANSACTIONS)
        return _uncertain(
            state.epoch,
            f"{MISSING}: {self._record_path(name, last)} is there, and the table has no transaction of it any more. "
            "Either it has expired (delta.setTransactionRetentionDuration), or the table was created again",
        )

    def commit(self, snapshot: Any, name: str, state: LakeState, files: Sequence[StagedFile]) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        before = snapshot.transaction_version(f"{_PREFIX}{name}")
        version, acquires = state.epoch * _TRANSACTIONS, state.committed.producer_id != state.epoch
        if state.is_forgotten:
            version += _FORGOTTEN
        elif not acquires:
            version += state.committed.producer_epoch + 1
        if before is not None and version <= before:
            raise SnapshotSuperseded(f"version {version} of {name!r} after {before}")
        with library_errors():
            if not state.is_forgotten:
                self._write_record(name, version, state, is_new=acquires)
            columns = _columns_with_statistics(snapshot.metadata().configuration)
            actions = [self._action(file, columns) for file in files]
        properties = CommitProperties(
            custom_metadata={"einmal.pipeline": name, "einmal.record": state.record},
            max_commit_retries=0,
            app_transactions=[Transaction(f"{_PREFIX}{name}", version, time.time_ns() // 1_000_000)],
        )
        try:
            snapshot.create_write_transaction(actions, "append", snapshot.schema(), commit_properties=properties)
        except CommitFailedError as error:
            raise SnapshotSuperseded(str(error)) from error
        self._remove_records_before(version, name)

    def clear(self, name: str) -> None:
        directory = self._record_path(name, 0).parent
        for path in (*self._record_files(name), directory / _NAME_FILE):
            path.unlink(missing_ok=True)
        directory.rmdir()

    def create(self, schema: RowSchema) -> None:
        from deltalake import DeltaTable, Schema

        self._path.mkdir(parents=True, exist_ok=True)
        # A table's schema is JSON of Spark's. Columns may be NULL in files that lack them, and inner fields in the rows
        # of another version of the query: Delta has no statement that permits it later.
        fields = [_nullable(_without_rules(field.as_json)) for field in schema]
        DeltaTable.create(
            str(self._path), schema=Schema.from_json(json.dumps({"type": "struct", "fields": fields})), mode="ignore"
        )

    def differences(self, snapshot: Any, schema: RowSchema) -> list[tuple[str, str]]:
        problems = _protocol_problems(snapshot, schema)
        columns = {field["name"].lower(): field for field in json.loads(snapshot.schema().to_json())["fields"]}
        nulls: list[str] = []
        for field in schema:
            column = columns.pop(field.name.lower(), None)
            wanted = field.type.as_json
            if column is None:
                problems.append((f"the table has no column {field.name!r}", "add it to the table first"))
            elif column["name"] != field.name or without_nullability(column["type"]) != without_nullability(wanted):
                problems.append(
                    (
                        f"the table has column {column['name']!r} of type {column['type']}, the rows have "
                        f"{field.name!r} of type {wanted}",
                        "rename or cast it in the query",
                    )
                )
            else:
                nulls += _fields_with_null(column, field.as_json, field.name)
        hint = "make it so in the query: coalesce(…, lit(…)) of a column, or drop NOT NULL in the table"
        problems += [(f"{name} of the table is never NULL, and in the rows it may be", hint) for name in nulls]
        return problems + [
            (f"column {column['name']!r} of the table is never NULL, and the rows have none", "select it in the query")
            for column in columns.values()
            if not column["nullable"]
        ]

    def _action(self, file: StagedFile, columns: int) -> Any:
        from deltalake.transaction import AddAction

        status = file.path.stat()
        path = file.path.relative_to(self._path).as_posix()
        stats = statistics(file.path, file.count, columns)
        return AddAction(path, status.st_size, {}, status.st_mtime_ns // 1_000_000, True, stats)

    def _record_text(self, name: str, version: int) -> str:
        """Empty where there is none."""
        try:
            return self._record_path(name, version).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def _record_path(self, name: str, version: int) -> Path:
        return self._records / directory_of(name) / f"{version}.json"

    def _remove_records_before(self, version: int, name: str) -> None:
        """Nobody can commit them any more."""
        for path in self._record_files(name):
            if int(path.stem) < version:
                path.unlink(missing_ok=True)

    def _record_files(self, name: str) -> list[Path]:
        paths = self._record_path(name, 0).parent.glob("*.json")
        return [path for path in paths if path.stem.isdecimal()]

    def _write_record(self, name: str, version: int, state: LakeState, *, is_new: bool) -> None:
        """``is_new``: raise SnapshotSuperseded where somebody has written it."""
        path = self._record_path(name, version)
        if not (path.parent / _NAME_FILE).exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_durably(path.parent / _NAME_FILE, name)
            for directory in (self._records, self._records.parent, self._path):
                flush_directory(directory)
        text = state_as_json(state)
        if not is_new:
            # Another try of the same transaction replaces it.
            _write_durably(path, text)
            return
        try:
            _write(path, text, "x")
        except FileExistsError as error:
            raise SnapshotSuperseded(f"{path} exists") from error
        flush_directory(path.parent)


def _state_of(version: int, text: str) -> LakeState:
    """The state whose record has this text."""
    epoch = version // _TRANSACTIONS
    try:
        fields = json.loads(text)
        committed = Identity(ProducerId(int(fields["committed"][0])), ProducerEpoch(int(fields["committed"][1])))
        return LakeState(epoch, committed, fields["record"], int(fields["timestamp_ms"]))
    except (ValueError, LookupError, TypeError):
        return _uncertain(epoch, text)


def _uncertain(epoch: int, text: str | None) -> LakeState:
    """Return a state by which nothing is removed that may be committed."""
    return LakeState(epoch, Identity(ProducerId(epoch), ProducerEpoch(_TRANSACTIONS)), text)


def _write_durably(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    _write(temporary, text, "w")
    temporary.replace(path)
    flush_directory(path.parent)


def _write(path: Path, text: str, mode: str) -> None:
    with path.open(mode, encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _protocol_problems(snapshot: Any, schema: RowSchema) -> list[tuple[str, str]]:
    metadata, protocol = snapshot.metadata(), snapshot.protocol()
    problems = []
    if metadata.partition_columns:
        columns = ", ".join(metadata.partition_columns)
        problems.append((f"the table is partitioned by {columns}", "einmal writes tables without partitions"))
    features = set(protocol.writer_features or ())
    unknown = sorted(features - _FEATURES)
    if unknown or (not features and protocol.min_writer_version > _WRITER_VERSION_MAX):
        what = ", ".join(unknown) or f"writer version {protocol.min_writer_version}"
        problems.append((f"the table demands {what} of its writers", f"einmal knows {', '.join(sorted(_FEATURES))}"))
    rules = [name for name in metadata.configuration if name.startswith("delta.constraints.")]
    rows = {"fields": [field.as_json for field in schema]}
    # Rows from a column of the same type have no longer text.
    lengths = {path: (field.get("metadata") or {}).get(_VARCHAR) for path, field in _fields_of(rows, "")}
    for path, field in _fields_of(json.loads(snapshot.schema().to_json()), ""):
        kept = field.get("metadata") or {}
        rules += [f"{name} of {path}" for name in _NOT_CHECKED if name in kept]
        if _VARCHAR in kept and path in lengths and lengths[path] != kept[_VARCHAR]:
            rules.append(f"{kept[_VARCHAR]} of {path}")
    return problems + [(f"the table has the rule {rule}", "einmal does not check rules of tables") for rule in rules]


def _columns_with_statistics(configuration: Mapping[str, str]) -> int:
    """The table's own number where it is one."""
    try:
        return int(configuration.get(COLUMNS_SETTING, COLUMNS_DEFAULT))
    except ValueError:
        return COLUMNS_DEFAULT


def _fields_of(kind: Any, path: str) -> Iterator[tuple[str, Any]]:
    """All fields in a type as JSON, and their paths."""
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        inner = f"{path}.{field['name']}".removeprefix(".")
        yield inner, field
        yield from _fields_of(field["type"], inner)
    for name in ("elementType", "keyType", "valueType"):
        yield from _fields_of(kind.get(name), path)


def _fields_with_null(column: Any, rows: Any, path: str) -> Iterator[str]:
    """The parts of a column, as JSON, that are never NULL in the table, and may be in the rows. Both have one type."""
    if not column["nullable"] and rows["nullable"]:
        yield f"column {path!r}"
    yield from _parts_with_null(column["type"], rows["type"], path)


def _parts_with_null(kind: Any, rows: Any, path: str) -> Iterator[str]:
    if not isinstance(kind, dict):
        return
    for part, of_rows in zip(kind.get("fields", ()), rows.get("fields", ()), strict=True):
        yield from _fields_with_null(part, of_rows, f"{path}.{part['name']}")
    for name, nullability in (("elementType", "containsNull"), ("keyType", ""), ("valueType", "valueContainsNull")):
        if name in kind:
            if nullability and not kind[nullability] and rows[nullability]:
                yield f"a value in column {path!r}"
            yield from _parts_with_null(kind[name], rows[name], path)


def _without_rules(kind: Any) -> Any:
    """A type or field as JSON, without the rules of the table that the rows may come from."""
    if isinstance(kind, dict):
        skipped = (*_NOT_CHECKED, _VARCHAR)
        return {name: _without_rules(value) for name, value in kind.items() if name not in skipped}
    return [_without_rules(field) for field in kind] if isinstance(kind, list) else kind


def _nullable(kind: Any) -> Any:
    """A type or field as JSON, of which every part may be NULL."""
    if isinstance(kind, dict):
        return {
            name: name in NULLABILITY or (value if name == "metadata" else _nullable(value))
            for name, value in kind.items()
        }
    return [_nullable(field) for field in kind] if isinstance(kind, list) else kind


class DeltaSink(LakeSink):
    """``type = "delta"``. ``path``: the table's directory, which the driver and all executors share."""

    OPTIONS = ("path",)

    def __init__(self, options: Options) -> None:
        self._table = DeltaLakeTable(mounted_directory(options, "/data/lake/words"))

    @property
    def lake_table(self) -> LakeTable:
        return self._table

    def promises(self) -> tuple[Reason, ...]:
        return (
            Reason(
                HopVerdict.HOLDS,
                "one commit of the table has the data files and the transaction version that names the record, on the "
                "snapshot whose epoch was compared",
            ),
            Reason(
                HopVerdict.IF,
                "the table's directory keeps _einmal/records, and the file system creates a file only once",
                "copy the directory as a whole",
            ),
        )
