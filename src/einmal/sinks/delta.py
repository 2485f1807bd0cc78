"""A Delta Lake table as a sink, by delta-rs: no jar, and no JVM for the commit.

Delta's own pair of an application's id and version (the action ``txn``) is the fence and the pointer to the record:

    appId     einmal/NAME
    version   epoch * 2**32 + the number of the transaction in this epoch; larger with each commit
    record    _einmal/records/NAME/VERSION.json in the table's directory, durable before the commit that names it

Two drivers that acquire a name at once make the same version. So the file of an epoch is created and never replaced:
whoever finds it takes the next epoch, and nobody writes an older record under a version that another one commits.

The record is not in the commit's metadata (``commitInfo``), which Delta deletes with its old log files, and not in the
table's properties, whose change is a conflict for every other writer. The action ``txn`` is kept in checkpoints.

Each commit is made on the snapshot whose version was compared, in one try (``max_commit_retries=0``): a later commit of
anybody is a conflict, and is looked at. delta-rs alone would accept a version that was committed before (delta-rs
#2580, #3821), so versions are compared here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from einmal.options.values import OptionError, Options
from einmal.pipeline.reasons import HopVerdict, Reason
from einmal.sinks.commit_point import Identity
from einmal.sinks.delta_statistics import COLUMNS_DEFAULT, COLUMNS_SETTING, statistics
from einmal.sinks.lake import (
    STAGING,
    LakeSink,
    LakeState,
    LakeTable,
    SnapshotSuperseded,
    state_as_json,
)
from einmal.sinks.row_schema import RowSchema
from einmal.sinks.staged_files import StagedFile, directory_of, flush_directory
from einmal.types import ProducerEpoch, ProducerId

_TRANSACTIONS: Final = 2**32
"""Number of transactions of one epoch."""
_PREFIX: Final = "einmal/"
_NAME_FILE: Final = "name"
_WRITER_VERSION_MAX: Final = 2
_FEATURES: Final = frozenset({"appendOnly", "invariants", "timestampNtz", "deletionVectors", "domainMetadata"})
"""Table features that an append need not do anything for."""
_NOT_CHECKED: Final = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
"""Metadata of columns whose rules are a writer's to keep."""


class DeltaLakeTable(LakeTable):
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
        return [(directory / _NAME_FILE).read_text(encoding="utf-8") for directory in sorted(self._records.iterdir())]

    def state(self, snapshot: Any, name: str) -> LakeState:
        version = snapshot.transaction_version(f"{_PREFIX}{name}")
        if version is None:
            return LakeState()
        epoch = version // _TRANSACTIONS
        path = self._record_path(name, version)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            later = self.load()
            if later is not None and later.version() > snapshot.version():
                # The next commit has removed it. A commit on ``snapshot`` is refused all the same.
                return self.state(later, name)
            text = f"{path} is missing"
        try:
            fields = json.loads(text)
            committed = Identity(ProducerId(int(fields["committed"][0])), ProducerEpoch(int(fields["committed"][1])))
            return LakeState(epoch, committed, fields["record"], int(fields["timestamp_ms"]))
        except (ValueError, LookupError, TypeError):
            # It cannot be read as a record, and nothing is removed that it may have committed.
            return LakeState(epoch, Identity(ProducerId(epoch), ProducerEpoch(_TRANSACTIONS)), text)

    def commit(self, snapshot: Any, name: str, state: LakeState, files: Sequence[StagedFile]) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        before = snapshot.transaction_version(f"{_PREFIX}{name}")
        version, acquires = state.epoch * _TRANSACTIONS, state.committed.producer_id != state.epoch
        if not acquires:
            version += state.committed.producer_epoch + 1
        if before is not None and version <= before:
            raise SnapshotSuperseded(f"version {version} of {name!r} after {before}")
        self._write_record(name, version, state, is_new=acquires)
        properties = CommitProperties(
            custom_metadata={"einmal.pipeline": name, "einmal.record": state.record},
            max_commit_retries=0,
            app_transactions=[Transaction(f"{_PREFIX}{name}", version, state.timestamp_ms)],
        )
        columns = _columns_with_statistics(snapshot.metadata().configuration)
        actions = [self._action(file, columns) for file in files]
        try:
            snapshot.create_write_transaction(actions, "append", snapshot.schema(), commit_properties=properties)
        except CommitFailedError as error:
            raise SnapshotSuperseded(str(error)) from error
        self._remove_records_before(version, name)

    def create(self, schema: RowSchema) -> None:
        from deltalake import DeltaTable, Schema

        self._path.mkdir(parents=True, exist_ok=True)
        # A table's schema is JSON of Spark's. Columns may be NULL in files that lack them.
        fields = [{**field.as_json, "nullable": True} for field in schema]
        DeltaTable.create(
            str(self._path), schema=Schema.from_json(json.dumps({"type": "struct", "fields": fields})), mode="ignore"
        )

    def differences(self, snapshot: Any, schema: RowSchema) -> list[tuple[str, str]]:
        problems = _protocol_problems(snapshot)
        columns = {field["name"].lower(): field for field in json.loads(snapshot.schema().to_json())["fields"]}
        for field in schema:
            column = columns.pop(field.name.lower(), None)
            wanted = field.type.as_json
            if column is None:
                problems.append((f"the table has no column {field.name!r}", "add it to the table first"))
            elif column["name"] != field.name or _without_nullability(column["type"]) != _without_nullability(wanted):
                problems.append(
                    (
                        f"the table has column {column['name']!r} of type {column['type']}, the rows have "
                        f"{field.name!r} of type {wanted}",
                        "rename or cast it in the query",
                    )
                )
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


def _protocol_problems(snapshot: Any) -> list[tuple[str, str]]:
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
    rules += [
        f"{name} of {field['name']}"
        for field in json.loads(snapshot.schema().to_json())["fields"]
        for name in _NOT_CHECKED
        if name in field.get("metadata", {})
    ]
    return problems + [(f"the table has the rule {rule}", "einmal does not check rules of tables") for rule in rules]


def _columns_with_statistics(configuration: Mapping[str, str]) -> int:
    """The table's own number where it is one."""
    try:
        return int(configuration.get(COLUMNS_SETTING, COLUMNS_DEFAULT))
    except ValueError:
        return COLUMNS_DEFAULT


def _without_nullability(kind: Any) -> Any:
    """A type as JSON, without what may differ between rows and table."""
    if isinstance(kind, dict):
        skipped = ("nullable", "containsNull", "valueContainsNull", "metadata")
        return {name: _without_nullability(value) for name, value in kind.items() if name not in skipped}
    return [_without_nullability(field) for field in kind] if isinstance(kind, list) else kind


class DeltaSink(LakeSink):
    """``type = "delta"``. ``path``: the table's directory, which the driver and all executors share."""

    OPTIONS = ("path",)

    def __init__(self, options: Options) -> None:
        path = options.required("path", "/data/lake/words")
        if "://" in path:
            raise OptionError(
                f'option "path" is a directory, not {path!r}\n'
                "hint: object stores are not supported; the driver and all executors must mount the directory"
            )
        self._table = DeltaLakeTable(Path(path).absolute())

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
